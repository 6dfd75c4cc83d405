// Describes quantization by one constant scale, for passes that compute with codes.
#pragma once

#include <optional>
#include <string_view>

#include "graph/graph.h"

namespace treadle::passes {

struct Quantization {
  ValueId scale = kNoValue, zero = kNoValue;
  float step = 0;
  int32_t origin = 0;
  DType dtype = DType::undefined;

  float low() const { return dtype == DType::int8 ? -128.0F : 0.0F; }
  float high() const { return dtype == DType::int8 ? 127.0F : 255.0F; }
  bool operator==(const Quantization& other) const { return step == other.step && origin == other.origin && dtype == other.dtype; }
};

/// Returns the quantization by a scale and a zero point of 8 bits, if both are one constant and the scale is positive.
std::optional<Quantization> quantization_by(const Graph& graph, ValueId scale, ValueId zero);

/// Describes a QuantizeLinear or DequantizeLinear between float32 and 8-bit codes with one positive constant scale. Nullopt for other
/// nodes, and for null.
std::optional<Quantization> quantization_of(const Graph& graph, const Node* node, std::string_view op_type);

}  // namespace treadle::passes
