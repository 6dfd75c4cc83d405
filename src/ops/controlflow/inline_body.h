// Bodies that run once, and always, become nodes of the graph around them.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace treadle::ops {

/// Formal inputs of a body: those that are no captures.
size_t num_formal_inputs(const Body& body);

/// Copies the nodes of a node's body in front of the node. @param inputs  stand for the body's formal inputs. @return its outputs.
std::vector<ValueId> inline_body(Graph& graph, NodeId node, const Body& body, std::span<const ValueId> inputs);

}  // namespace treadle::ops
