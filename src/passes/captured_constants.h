// Copies constants that a body captures into the body, so that its kernels can pack them and its shapes are known.
#pragma once

#include "graph/graph.h"

namespace treadle::passes {

/// Returns the number of nodes whose bodies got constants, counting nodes within bodies too.
int64_t copy_captured_constants(Graph& graph);

}  // namespace treadle::passes
