// Broadcasting loops for any operator and dtype: inputs of broadcastable shapes, one contiguous output.
//   const auto plan = plan_broadcast<2>(out_shape, {a_shape, b_shape});                                  // at bind
//   broadcast_binary(plan, a, b, dst, pool, [](float x, float y) { return x * y; });                      // at run
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/threads/thread_pool.h"
#include "kernels/strided_loop.h"

namespace treadle::kernels {

/// Number of elements per chunk of a threaded elementwise loop. They take some microseconds and fit the caches.
inline constexpr int64_t kElementwiseGrain = 16 * 1024;

/// The plan of a loop, whose operands are the inputs. The output is contiguous, so element i of the loop is element i of the output.
template <int kInputs>
using BroadcastPlan = StridedLoop<kInputs>;

/// Plans the loop.
/// @param out  shape of the output
/// @param in   shapes of contiguous inputs; each must broadcast to `out` by NumPy's rules
/// @throws Error(invalid_argument) if an input does not broadcast to `out`
template <int kInputs>
BroadcastPlan<kInputs> plan_broadcast(std::span<const int64_t> out, const std::array<std::span<const int64_t>, kInputs>& in) {
  int64_t strides[kInputs][kMaxLoopRank] = {};
  std::array<std::span<const int64_t>, kInputs> views;
  const size_t rank = out.size();
  for (size_t k = 0; k < kInputs; ++k) {
    if (in[k].size() > rank || rank > kMaxLoopRank) {
      throw Error(ErrorCode::invalid_argument,
                  "an input of rank " + std::to_string(in[k].size()) + " does not broadcast to rank " + std::to_string(rank));
    }
    int64_t stride = 1;
    for (size_t i = 0; i < in[k].size(); ++i) {
      const int64_t extent = in[k][in[k].size() - 1 - i], wanted = out[rank - 1 - i];
      if (extent != wanted && extent != 1) {
        throw Error(ErrorCode::invalid_argument,
                    "an extent of " + std::to_string(extent) + " does not broadcast to " + std::to_string(wanted));
      }
      strides[k][rank - 1 - i] = extent == 1 ? 0 : stride;
      stride *= extent;
    }
    views[k] = {strides[k], rank};
  }
  return collapse<kInputs>(out, views);
}

/// Computes dst[i] = fn(element i of a, element i of b), both broadcast. dst may be one of the inputs if that input is not broadcast.
template <typename Out, typename A, typename B, typename Fn>
void broadcast_binary(const BroadcastPlan<2>& plan, const A* a, const B* b, Out* dst, ThreadPool* pool, Fn fn) {
  parallel_for(pool, plan.size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    const int64_t sa = plan.inner_stride(0), sb = plan.inner_stride(1);
    for_each_run(plan, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
      const A* x = a + at[0];
      const B* y = b + at[1];
      Out* z = dst + first;
      if (sa == 1 && sb == 1) {
        for (int64_t i = 0; i < n; ++i) z[i] = fn(x[i], y[i]);
      } else if (sa == 1 && sb == 0) {
        const B scalar = *y;
        for (int64_t i = 0; i < n; ++i) z[i] = fn(x[i], scalar);
      } else if (sa == 0 && sb == 1) {
        const A scalar = *x;
        for (int64_t i = 0; i < n; ++i) z[i] = fn(scalar, y[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) z[i] = fn(x[i * sa], y[i * sb]);
      }
    });
  });
}

}  // namespace treadle::kernels
