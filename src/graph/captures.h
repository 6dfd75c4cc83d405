// Captures: values that bodies read from the enclosing graph.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Drops the captures of a node that none of its bodies uses any more; the others move up.
void drop_unused_captures(Graph& graph, NodeId id);

}  // namespace treadle
