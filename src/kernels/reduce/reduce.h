// Reductions over any set of axes of a contiguous array, and arg max / arg min along one.
//
// Float sums run in many chains over short blocks whose totals are added in double; the blocks depend on the shape alone.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/strided_loop.h"

namespace treadle::kernels {

enum class Reduce : uint8_t { sum, mean, max, min, prod, l1, l2, log_sum, log_sum_exp, sum_square };

struct ReducePlan {
  StridedLoop<1> kept;     ///< outputs in order; the stride is where their first input lies
  StridedLoop<1> reduced;  ///< inputs of one output
};

/// @param reduce_axis  bit i: axis i is reduced
ReducePlan plan_reduce(std::span<const int64_t> dims, uint32_t reduce_axis);

/// y (as many as plan.kept.size) = the reduction. Of no elements: 0, NaN (0 for integers), lowest, highest, 1, 0, 0, -inf, -inf, 0 in the
/// order of the enum. A NaN wins max and min. T: float, double, (u)int8 to (u)int64, Float16, BFloat16 (those two compute in float).
template <typename T>
void reduce(Reduce op, const ReducePlan& plan, const T* x, T* y, ThreadPool* pool);

/// y[o, i] = the place along the axis of the largest (or smallest) of x[o, :, i]; the first of equals, or the last. A NaN wins.
/// @throws Error(invalid_argument) if length is 0 and there are outputs.
template <typename T>
void arg_extreme(bool largest, bool select_last, int64_t outer, int64_t length, int64_t inner, const T* x, int64_t* y, ThreadPool* pool);

}  // namespace treadle::kernels
