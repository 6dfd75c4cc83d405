// Reductions of a contiguous array over any set of axes, and arg max and arg min along one axis.
//
// Floats are summed in short blocks with many accumulators, and the blocks' sums are added in double. The blocks depend only on the shape.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/strided_loop.h"

namespace treadle::kernels {

enum class Reduce : uint8_t { sum, mean, max, min, prod, l1, l2, log_sum, log_sum_exp, sum_square };

struct ReducePlan {
  StridedLoop<1> kept;     ///< iterates over the outputs in order; its offset is that of the output's first input
  StridedLoop<1> reduced;  ///< iterates over the inputs of one output
};

/// Plans a reduction. @param reduce_axis  bit i: axis i is reduced
ReducePlan plan_reduce(std::span<const int64_t> dims, uint32_t reduce_axis);

/// Computes y, which has plan.kept.size elements. The result for an output without inputs is, in the order of the enum: 0, NaN (0 for
/// integers), lowest, highest, 1, 0, 0, -inf, -inf, 0. If an input is NaN, max and min are NaN. T: float, double, (u)int8 to (u)int64,
/// Float16, BFloat16 (computed in float).
template <typename T>
void reduce(Reduce op, const ReducePlan& plan, const T* x, T* y, ThreadPool* pool);

/// Sets y[o, i] to the index along the axis of the maximum (or minimum) of x[o, :, i]: the first of equal elements, or the last if
/// select_last. NaN counts as the extreme. @throws Error(invalid_argument) if length is 0 and there are outputs
template <typename T>
void arg_extreme(bool largest, bool select_last, int64_t outer, int64_t length, int64_t inner, const T* x, int64_t* y, ThreadPool* pool);

}  // namespace treadle::kernels
