// Sparse gradients of tables (embeddings). They contain only the rows that a step has read, and the indices of these rows.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/graph/training_graph.h"

namespace treadle::train {

/// The gradient of a parameter. If `places` is set, `value` has only some rows of it, and `places` has their indices in ascending order,
/// followed by -1 for unused rows. All other rows are zero.
struct ParameterGradient {
  ValueId value = kNoValue;
  ValueId places = kNoValue;

  bool has_rows() const { return places != kNoValue; }
};

/// Converts a dense gradient to rows, if it is a sum of GatherGrads along the first axis (only Gather nodes read the parameter) or the
/// product of a transposed CSR matrix. Appends new nodes; the nodes of the dense gradient become dead.
/// @return the rows; the gradient itself if it is neither.
ParameterGradient row_gradient(Graph& graph, ValueId gradient);

/// Returns the gradients of the parameters. Gradients of parameters that match a name or pattern in `chosen` are converted to rows where
/// possible.
/// @param option  name of the option that `chosen` comes from, for errors.
/// @throws Error(not_found) for a pattern that matches no parameter; Error(invalid_argument) for one that matches none whose gradient has
/// rows.
std::vector<ParameterGradient> with_rows(const TrainingGraph& training, std::span<const ValueId> grads,
                                         const std::vector<std::string>& chosen, std::string_view option);

/// Returns the used rows of a gradient and their indices, without the padding that begins at the first index -1. Both share the memory of
/// the arguments.
std::pair<Tensor, Tensor> without_padding(const Tensor& rows, const Tensor& places);

}  // namespace treadle::train
