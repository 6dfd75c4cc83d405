// Converts numbers to integers without undefined behavior.
#pragma once

#include <limits>
#include <type_traits>

namespace treadle {

/// Rounds toward zero. NaN, and numbers outside the signed type `To`, become its lowest value, as on x86; the specification of Cast leaves
/// this open.
template <typename To, typename From>
constexpr To to_integer(From x) {
  static_assert(std::is_integral_v<To> && std::is_signed_v<To>);
  if constexpr (std::is_floating_point_v<From>) {
    constexpr From kLowest = static_cast<From>(std::numeric_limits<To>::min());
    return x >= kLowest && x < -kLowest ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace treadle
