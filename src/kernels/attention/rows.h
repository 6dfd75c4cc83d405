// Attention's loops over one row of scores, compiled for each instruction set.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace treadle::kernels {

/// Adds the bias to a row. Elements whose bias is -infinity become -infinity, even if they were NaN.
void add_bias_row(float* row, const float* bias, int64_t n);
/// Sets row[i] to `masked` where mask[i] != keeps.
void mask_row_f32(float* row, const bool* mask, bool keeps, float masked, int64_t n);
/// Replaces the row by exp(row - max) and returns the factor 1 / sum. The caller applies the factor to the product with the values, which
/// has fewer elements than the row.
float softmax_scores(float* row, int64_t n, EmptyRows empty);
void scale_row_f32(float* row, float factor, int64_t n);

}  // namespace treadle::kernels
