// Values that depend only on parameters. They are computed when parameters change, not in each run.
#pragma once

#include "graph/graph.h"

namespace treadle {

/// Returns true if a node may be computed before a run, once its inputs are known: it is deterministic, its extents are known, it makes no
/// output of the graph, and its result is not much larger than its inputs (as that of an Expand would be).
bool may_be_computed_ahead(const Graph& graph, const Node& node);

/// Returns true if kernels can read the elements of this value when they pack: it is a constant, a parameter with elements
/// (Value::constant), or computed ahead from parameters and constants. Values computed only from constants are left to constant folding.
bool is_stored(const Graph& graph, ValueId id);

}  // namespace treadle
