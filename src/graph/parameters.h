// What follows from parameters alone, so that it is computed when they change and not in every run.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Whether a node may be computed ahead of the runs, if its inputs are there: it always gives the same, of extents that are known, and is
/// no output of the graph. What is much larger than all that it reads (an Expand) is better computed in the run.
bool may_be_computed_ahead(const Graph& graph, const Node& node);

/// Whether kernels find the elements when they pack: of a constant, of a parameter that has elements (Value::constant), and of what nodes
/// compute ahead of parameters and constants. What nodes compute of constants alone is for constant folding.
bool is_stored(const Graph& graph, ValueId id);

}  // namespace treadle
