// Values that depend on parameters only, which are computed when parameters change rather than in each run.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Returns true if a node may be computed before runs once its inputs are known: it is deterministic, its extents are known, and it does
/// not compute an output of the graph. A result much larger than its inputs (Expand) is better computed in the run.
bool may_be_computed_ahead(const Graph& graph, const Node& node);

/// Returns true if kernels can read the elements when they pack: of constants, of parameters with elements (Value::constant), and of values
/// computed ahead from parameters and constants. Values computed from constants only are left to constant folding.
bool is_stored(const Graph& graph, ValueId id);

}  // namespace treadle
