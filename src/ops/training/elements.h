// Helpers for optimizer nodes, which update values in place.
#pragma once

#include <cstdint>
#include <utility>

#include "core/threads/thread_pool.h"
#include "graph/op_def.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {

inline constexpr TypeSet kUpdated{DType::float32, DType::float64};

template <typename Fn>
void for_elements(RunContext& c, int64_t n, Fn&& fn) {
  parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    TREADLE_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

}  // namespace treadle::ops
