// Helpers for operators of com.microsoft, which are decomposed into ONNX operators.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

/// Node metadata: the model allows that this matrix product's float operand be quantized to 8 bits.
inline const std::pair<std::string, std::string> kInt8Activations{"treadle.activations", "int8"};

inline constexpr std::string_view kMicrosoft = "com.microsoft";

inline OpDef op(std::string_view name, std::vector<Port> inputs, std::vector<Port> outputs, std::vector<AttributeDef> attributes,
                RewriteNode decompose) {
  return {.name = name,
          .domain = kMicrosoft,
          .since = {1},
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .attributes = std::move(attributes),
          .decompose = decompose};
}

inline Port maybe(std::string_view name, TypeSet types, std::string_view type_name = "") {
  return {name, types, type_name, Presence::optional};
}

}  // namespace treadle::ops
