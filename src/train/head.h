// Another number of classes: a model whose last layer is replaced by a new one.
#pragma once

#include <string>
#include <vector>

#include "session/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// The model with options.head_classes classes in options.output: the last layer before it (Gemm, MatMul or Conv) has new weights and a new
/// bias, which begin with random numbers from -1 / sqrt(inputs) to 1 / sqrt(inputs), as PyTorch's layers do. The model itself if the option
/// is 0.
/// @throws Error(not_implemented) if there is no such layer, or others read its weights; invalid_argument if the model does not fit the new
/// one.
Model with_head(const Model& model, const TrainerOptions& options);

/// @throws Error(invalid_argument) if weights that with_head() has made are not among the trained parameters: they would stay random.
void check_head(const Model& model, const TrainerOptions& options, const std::vector<std::string>& trained);

}  // namespace treadle::train
