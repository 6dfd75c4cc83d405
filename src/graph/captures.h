// Values that bodies read from the graph around them.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Drops the operands of a node that none of its bodies captures any more; the others move up.
void drop_unused_captures(Graph& graph, NodeId id);

}  // namespace treadle
