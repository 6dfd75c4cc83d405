// Selects a type by element size, for kernels that move elements without interpreting them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "treadle/error.h"

namespace treadle::kernels {

struct Bytes16 {
  uint64_t low, high;
};

/// Calls fn.template operator()<T>() with an unsigned integer type (or Bytes16) of that size.
template <typename Fn>
void visit_element(size_t element_bytes, Fn&& fn) {
  switch (element_bytes) {
    case 1: return fn.template operator()<uint8_t>();
    case 2: return fn.template operator()<uint16_t>();
    case 4: return fn.template operator()<uint32_t>();
    case 8: return fn.template operator()<uint64_t>();
    case 16: return fn.template operator()<Bytes16>();
    default:
      throw Error(ErrorCode::invalid_argument,
                  "elements of " + std::to_string(element_bytes) + " bytes cannot be moved; sizes are 1, 2, 4, 8 and 16");
  }
}

}  // namespace treadle::kernels
