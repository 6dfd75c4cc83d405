// Right answers of a model that is trained to tell classes.
#pragma once

#include <cstdint>

#include "treadle/tensor.h"
#include "treadle/train.h"

namespace treadle::cli {

bool has_classes(train::Loss loss);

/// Among those that count, and how many count.
struct RightAnswers {
  int64_t right = 0, all = 0;
};

/// Of the largest score, or of each score's sign with binary cross entropy. None where the loss is of no classes.
RightAnswers count_right(const Tensor& scores, const Tensor& labels, const train::TrainerOptions& options);

}  // namespace treadle::cli
