// A body's captured constants become constants of the body: its kernels can pack them, its shapes are known.
#pragma once

#include "graph/graph.h"

namespace treadle::passes {

/// Returns the number of nodes whose bodies got some, nested ones included.
int64_t copy_captured_constants(Graph& graph);

}  // namespace treadle::passes
