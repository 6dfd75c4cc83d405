// Arithmetic on sizes from models and feeds: overflow is an error and never wraps.
#pragma once

#include <cstdint>
#include <string>

#include "treadle/error.h"

namespace treadle {

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result))
    throw Error(ErrorCode::resource_exhausted, "size overflow: " + std::to_string(a) + " + " + std::to_string(b));
  return result;
}

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result))
    throw Error(ErrorCode::resource_exhausted, "size overflow: " + std::to_string(a) + " * " + std::to_string(b));
  return result;
}

/// Rounds toward negative infinity. @pre b > 0
inline int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0 && a < 0) ? 1 : 0); }
inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
/// Rounds up to a multiple of `alignment`, a power of two.
inline size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

}  // namespace treadle
