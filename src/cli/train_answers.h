// Counts a classifier's correct predictions during training.
#pragma once

#include <cstdint>

#include "treadle/tensor.h"
#include "treadle/train.h"

namespace treadle::cli {

bool has_classes(train::Loss loss);

/// The number of correct predictions, and the number of samples that count.
struct RightAnswers {
  int64_t right = 0, all = 0;
};

/// Predicts the class with the largest score; with binary cross entropy, the sign of each score decides. Empty for a loss without classes.
RightAnswers count_right(const Tensor& scores, const Tensor& labels, const train::TrainerOptions& options);

}  // namespace treadle::cli
