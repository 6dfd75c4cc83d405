// Rounds to bfloat16 and float16 by their definitions, for tests of kernels that round.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gemm/gemm_bf16.h"

namespace treadle::test {

/// Returns the nearest normal number with 8 bits of mantissa. If two are equally near, returns the one whose last bit is 0.
inline float nearest_bf16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(x), &exponent);                         // the mantissa is in [0.5, 1)
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));  // nearbyint() rounds ties to even
}

inline std::vector<float> nearest_bf16(std::vector<float> values) {
  for (float& v : values) v = nearest_bf16(v);
  return values;
}

/// Returns the nearest float16: 11 bits of mantissa, but none below 2^-24; infinity from 65520 on.
inline float nearest_f16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int last = std::max(exponent - 11, -24);
  const double near = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -last)), last);  // nearbyint() rounds ties to even
  return std::abs(near) > 65504 ? std::copysign(std::numeric_limits<float>::infinity(), x) : static_cast<float>(near);
}

/// Rounds values as a product in this form does. Three bfloat16 products nearly equal the product of the exact values.
inline std::vector<float> as_read(std::vector<float> values, kernels::Bf16Form form) {
  for (float& v : values)
    if (form != kernels::Bf16Form::three) v = form == kernels::Bf16Form::one ? nearest_bf16(v) : nearest_f16(v);
  return values;
}

}  // namespace treadle::test
