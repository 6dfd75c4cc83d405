// Computes the operator Where for 4-byte elements.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Computes dst[i] = condition[i] ? x[i * step_x] : y[i * step_y] for i in [0, n), on the calling thread. Steps are 0 or 1. dst may be x or
/// y.
void choose(const bool* condition, const uint32_t* x, int64_t step_x, const uint32_t* y, int64_t step_y, uint32_t* dst, int64_t n);

}  // namespace treadle::kernels
