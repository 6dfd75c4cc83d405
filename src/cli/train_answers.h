// Counts a classifier's correct predictions during training.
#pragma once

#include <cstdint>

#include "treadle/tensor.h"
#include "treadle/train.h"

namespace treadle::cli {

bool has_classes(train::Loss loss);

/// The number of correct predictions, and the number of all predictions that count.
struct RightAnswers {
  int64_t right = 0, all = 0;
};

/// Counts correct predictions. The class with the largest score is predicted; with binary cross entropy, a score's sign decides. Both
/// numbers are 0 for a loss without classes.
RightAnswers count_right(const Tensor& scores, const Tensor& labels, const train::TrainerOptions& options);

}  // namespace treadle::cli
