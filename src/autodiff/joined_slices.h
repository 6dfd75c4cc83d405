// Joins the gradients of slices that together cover a whole value.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace treadle::autodiff {

/// If slices along one axis cover every row of a value exactly once, the value's gradient becomes one Concat of the slices' gradients.
/// Without this, each slice would give a tensor that is zero except for one part, and these tensors would be summed. Exporters slice the
/// weights of recurrent layers in this way to reorder the gates for ONNX.
/// @param partials  the value's partial gradients; the slices' gradients are replaced by the Concat
void join_slices(Graph& graph, std::vector<ValueId>& partials);

}  // namespace treadle::autodiff
