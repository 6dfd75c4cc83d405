// Gradients of tables of which a step reads some rows: those rows, and where they belong.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/training_graph.h"

namespace treadle::train {

/// Of a parameter. With `places`, `value` has rows of the gradient; all others are zeros. Places ascend, and those behind the last row are
/// -1.
struct ParameterGradient {
  ValueId value = kNoValue;
  ValueId places = kNoValue;

  bool has_rows() const { return places != kNoValue; }
};

/// The rows of a gradient that is a sum of GatherGrads along the first axis (of a parameter that Gather nodes read and nobody else), or the
/// product of a transposed matrix in CSR. They are appended; the dense gradient becomes dead nodes. @return the gradient as it is if it is
/// none.
ParameterGradient row_gradient(Graph& graph, ValueId gradient);

/// The gradients of the parameters, by rows where a name or pattern of `chosen` fits and there are rows.
/// @param option  the name of the option that `chosen` is of.
/// @throws Error(not_found) for one that fits no parameter; Error(invalid_argument) for one that fits none whose gradient has rows.
std::vector<ParameterGradient> with_rows(const TrainingGraph& training, std::span<const ValueId> grads,
                                         const std::vector<std::string>& chosen, std::string_view option);

/// The first rows of a gradient, up to the place that is -1, and their places. The memory is shared.
std::pair<Tensor, Tensor> without_padding(const Tensor& rows, const Tensor& places);

}  // namespace treadle::train
