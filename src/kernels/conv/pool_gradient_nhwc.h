// Gradients of pools in float32 with channels innermost.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/conv/window.h"

namespace treadle::kernels {

/// dx[N, in, C] of dy[N, out, C]: each window's gradient goes to the first of its greatest elements of x, as the indices of MaxPool say;
/// NaN is greater than all else. One or two spatial axes.
void max_pool_gradient_nhwc(const Window& window, int64_t N, int64_t C, const float* dy, const float* x, float* dx, ThreadPool* pool);

}  // namespace treadle::kernels
