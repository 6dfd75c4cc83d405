// Computes rows of ReduceLogSumExp.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Computes y[i] = log sum exp(x[i * row_stride + j]) over j in [0, n). @pre n > 0, rows <= kFoldColumns (kernels/reduce/fold.h)
void log_sum_exp_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y);

}  // namespace treadle::kernels
