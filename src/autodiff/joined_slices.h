// The gradients of slices that share a value out between them.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// Slices that take every row of a value along one axis, each once, give it a gradient that consists of theirs: one Concat in place of as
/// many tensors of zeros with a part in each, and of their sum. Exporters cut the weights of recurrent layers so, to put the gates into
/// ONNX's order.
/// @param partials  what flows into the value; those of the slices are replaced by what they make together.
void join_slices(Graph& graph, std::vector<ValueId>& partials);

}  // namespace treadle::autodiff
