// Checks that inference could not make: of extents that were symbols, of nodes of an older schema.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "graph/graph.h"
#include "treadle/error.h"

namespace treadle::ops {

/// @throws Error(invalid_argument) naming `what` if the two differ.
inline void check_equal(int64_t a, int64_t b, std::string_view what) {
  if (a != b) throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} and {} differ", what, a, b));
}

/// @throws Error(invalid_model) unless the first `count` inputs are there.
inline void require_inputs(const Node& node, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!node.has_input(i)) throw Error(ErrorCode::invalid_model, fmt::format("the input {} is missing", i));
}

}  // namespace treadle::ops
