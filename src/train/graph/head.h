// Changes a model's number of classes by replacing its last layer.
#pragma once

#include <string>
#include <vector>

#include "session/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// Replaces the last layer (Gemm, MatMul or Conv) before options.output by one with options.head_classes classes. Its weights and bias
/// are uniform in [-b, b] with b = 1 / sqrt(inputs), as in PyTorch's layers. Returns the model unchanged if head_classes is 0.
/// @throws Error(not_implemented) if there is no such layer, or if other nodes read its weights; Error(invalid_argument) if the rest of the
/// model does not fit the new number of classes.
Model with_head(const Model& model, const TrainerOptions& options);

/// Checks that training changes the weights that with_head() has made; otherwise they would keep their random values.
/// @throws Error(invalid_argument) if one of them is not trained
void check_head(const Model& model, const TrainerOptions& options, const std::vector<std::string>& trained);

}  // namespace treadle::train
