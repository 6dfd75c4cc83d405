// Inlines into the surrounding graph a body that always runs exactly once.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::ops {

/// Returns the number of a body's inputs that are not captures.
size_t num_formal_inputs(const Body& body);

/// Copies the nodes of a body into `graph`, in front of `node`. `inputs` replace the body's formal inputs. Returns the body's outputs.
std::vector<ValueId> inline_body(Graph& graph, NodeId node, const Body& body, std::span<const ValueId> inputs);

}  // namespace treadle::ops
