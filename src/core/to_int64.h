// Numbers as integers, without undefined behaviour.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace treadle {

/// Towards zero. What int64 cannot hold, and NaN, becomes its lowest value, as x86 does it; the specification of Cast leaves it open.
template <typename T>
constexpr int64_t to_int64(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T kLimit = static_cast<T>(9223372036854775808.0);
    return x >= -kLimit && x < kLimit ? static_cast<int64_t>(x) : std::numeric_limits<int64_t>::min();
  } else {
    return static_cast<int64_t>(x);
  }
}

}  // namespace treadle
