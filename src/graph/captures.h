// Captures: values that bodies read from the enclosing graph.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Removes the captures of a node that none of its bodies uses any more; the indices of later ones decrease.
void drop_unused_captures(Graph& graph, NodeId id);

}  // namespace treadle
