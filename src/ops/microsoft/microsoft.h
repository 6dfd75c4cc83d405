// Helpers for the operators of com.microsoft, which are rewritten as ONNX's.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

/// Metadata of a product whose float operand may be quantised to 8 bits, because the model allows that.
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
