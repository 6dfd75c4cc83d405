// Checks that inference cannot always make: of extents that were symbols during inference, and of nodes of old opsets.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "graph/graph.h"
#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::ops {

/// Throws if two extents differ. @throws Error(invalid_argument) naming `what`.
inline void check_equal(int64_t a, int64_t b, std::string_view what) {
  if (a != b) throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} and {} differ", what, a, b));
}

/// Checks an operand. @throws Error(invalid_argument) if it is known to have a number of elements other than one.
inline void check_one_element(const InferContext& c, int input, std::string_view name) {
  if (!c.has_input(input) || !c.has_rank(input)) return;
  const Dim count = product(c.shape(input));
  if (count.is_const() && !count.is_const(1))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; expected a scalar", name, to_string(c.input(input))));
}

/// Checks that the first `count` inputs are present. @throws Error(invalid_model) if one is absent.
inline void require_inputs(const Node& node, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!node.has_input(i)) throw Error(ErrorCode::invalid_model, fmt::format("the input {} is missing", i));
}

/// Returns the element type that an attribute names, `otherwise` if it is absent. @throws Error(invalid_model) for an unknown number.
inline DType dtype_attribute(const Attributes& attributes, std::string_view name, DType otherwise) {
  const int64_t number = attributes.get_int(name, static_cast<int64_t>(otherwise));
  if (number < 0 || number >= kNumDTypes) throw Error(ErrorCode::invalid_model, fmt::format("{} = {} is no element type", name, number));
  return static_cast<DType>(number);
}

}  // namespace treadle::ops
