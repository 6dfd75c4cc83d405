// Rounding to bfloat16 by the definition, for tests of kernels that round.
#pragma once

#include <cmath>
#include <vector>

namespace treadle::test {

/// The number with 8 bits of mantissa that is nearest to a normal number; of two, the one whose last bit is 0.
inline float nearest_bf16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(x), &exponent);                         // in [0.5, 1)
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));  // ties to even
}

inline std::vector<float> nearest_bf16(std::vector<float> values) {
  for (float& v : values) v = nearest_bf16(v);
  return values;
}

}  // namespace treadle::test
