// Gradients of float32 NHWC pools.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Computes dx[N, in, C] from dy[N, out, C]: each window's gradient goes to the first maximum in x, as MaxPool's indices point to it; NaN
/// counts as the largest number. One or two spatial axes.
void max_pool_gradient_nhwc(const Window& window, int64_t N, int64_t C, const float* dy, const float* x, float* dx, ThreadPool* pool);

}  // namespace treadle::kernels
