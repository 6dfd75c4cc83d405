// Checks of extents that inference could not make, because they were symbols.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "treadle/error.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) naming `what` if the two differ.
inline void check_equal(int64_t a, int64_t b, std::string_view what) {
  if (a != b) throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} and {} differ", what, a, b));
}

}  // namespace treadle::ops
