// Arithmetic on two float32 arrays that broadcast against each other.
#pragma once

#include "core/thread_pool.h"
#include "kernels/elementwise/broadcast.h"

namespace treadle::kernels {

enum class Binary : uint8_t { add, sub, mul, div, max, min };

/// dst = a op b. max and min give NaN if either is NaN, as NumPy's do. dst may be an input that is not broadcast.
void binary_f32(Binary op, const BroadcastPlan<2>& plan, const float* a, const float* b, float* dst, ThreadPool* pool);

}  // namespace treadle::kernels
