// Gradients of tables of which a step reads some rows: those rows, and where they belong.
#pragma once

#include <span>
#include <string>
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

/// The rows of a gradient that is a sum of GatherGrads along the first axis: of a parameter that Gather nodes read and nobody else. They
/// are appended; the dense gradient becomes dead nodes. @return the gradient as it is if it is none.
ParameterGradient row_gradient(Graph& graph, ValueId gradient);

/// The gradients of the parameters, by rows where a name or pattern of `lazy` fits and there are rows.
/// @throws Error(not_found) for one that fits no parameter; Error(invalid_argument) for one that fits none whose gradient has rows.
std::vector<ParameterGradient> with_rows(const TrainingGraph& training, std::span<const ValueId> grads,
                                         const std::vector<std::string>& lazy);

}  // namespace treadle::train
