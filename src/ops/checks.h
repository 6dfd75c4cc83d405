// Checks of operands for cases that shape inference misses: extents that are symbols until the run, and nodes of old opsets.
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

/// Throws Error(invalid_argument) if an operand, called `name` in the message, is known to have any number of elements but one.
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

/// Returns the element type that an attribute names by ONNX's number, or `otherwise` if the node lacks the attribute.
/// @throws Error(invalid_model) for an unknown number.
inline DType dtype_attribute(const Attributes& attributes, std::string_view name, DType otherwise) {
  const int64_t number = attributes.get_int(name, static_cast<int64_t>(otherwise));
  if (number < 0 || number >= kNumDTypes) throw Error(ErrorCode::invalid_model, fmt::format("{} = {} is no element type", name, number));
  return static_cast<DType>(number);
}

}  // namespace treadle::ops
