// The loops of attention over one row of scores, compiled for each instruction set.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace treadle::kernels {

/// row += bias; where the bias is -infinity, so is the row, whatever it was.
void add_bias_row(float* row, const float* bias, int64_t n);
/// row[i] = masked, where mask[i] != keeps.
void mask_row_f32(float* row, const bool* mask, bool keeps, float masked, int64_t n);
/// Softmax in place, but for the factor that it returns: the products with values have fewer elements to be multiplied by it.
float softmax_scores(float* row, int64_t n, EmptyRows empty);
void scale_row_f32(float* row, float factor, int64_t n);

}  // namespace treadle::kernels
