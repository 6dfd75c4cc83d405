// Sparse gradients of tables such as embeddings. They contain only the rows that a step has read, and the indices of these rows.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/graph/training_graph.h"

namespace treadle::train {

/// The gradient of a parameter. If `places` is set, `value` contains only some of the gradient's rows, and all other rows are zero.
/// `places` then contains the indices of these rows in ascending order, and -1 for unused rows at the end of `value`.
struct ParameterGradient {
  ValueId value = kNoValue;
  ValueId places = kNoValue;

  bool has_rows() const { return places != kNoValue; }
};

/// Converts a dense gradient to rows, if it is a sum of GatherGrad nodes along the first axis (only Gather nodes read the parameter), or a
/// product with a transposed CSR matrix. Appends new nodes; the nodes of the dense gradient become dead.
/// @return the rows; any other gradient is returned unchanged.
ParameterGradient row_gradient(Graph& graph, ValueId gradient);

/// Returns the gradients of the parameters. Gradients of parameters that match a name or pattern in `chosen` are converted to rows where
/// possible.
/// @param option  name of the option that `chosen` comes from, for errors.
/// @throws Error(not_found) for a pattern that matches no parameter; Error(invalid_argument) for a pattern that matches only parameters
/// whose gradients cannot be stored as rows.
std::vector<ParameterGradient> with_rows(const TrainingGraph& training, std::span<const ValueId> grads,
                                         const std::vector<std::string>& chosen, std::string_view option);

/// Returns the used rows of a gradient, and their indices. Omits the padding, which begins at the first index -1. Both results are views
/// of the arguments.
std::pair<Tensor, Tensor> without_padding(const Tensor& rows, const Tensor& places);

}  // namespace treadle::train
