// One graph's nodes as a part of another.
#pragma once

#include <map>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Copies the nodes of `inside` into `graph`, before a node of it or behind all. Types are left to infer_node().
/// @param copies  what stands for values of `inside`: at least for its inputs. All other values that it reads must be constants or made
/// there.
///                Becomes the copies of all values that were needed.
/// @param before  kNoNode: behind all nodes
/// @return the new nodes, in order
/// @throws Error(invalid_model) for a value that nothing makes.
std::vector<NodeId> inline_graph(Graph& graph, const Graph& inside, std::map<ValueId, ValueId>& copies, NodeId before = kNoNode);

}  // namespace treadle
