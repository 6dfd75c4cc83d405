// The reduced precision of matrix products and convolutions. The optimizer sets it as the attribute `precision` of operators of the treadle
// domain.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/values/built_types.h"
#include "core/values/float_types.h"
#include "graph/attributes.h"
#include "graph/graph.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm_bf16.h"
#include "treadle/error.h"

namespace treadle::ops {

enum class Precision : uint8_t { float32, bfloat16, bfloat16x3, float16, int8_weights };
inline constexpr std::array<std::string_view, 5> kPrecisionNames{"float32", "bfloat16", "bfloat16x3", "float16", "int8_weights"};

inline std::string_view name_of(Precision precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }
inline std::optional<Precision> precision_named(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (kPrecisionNames[i] == name) return static_cast<Precision>(i);
  return std::nullopt;
}

/// Name of the attribute. Without it, an operator computes in float32, but operators named Rounded* require it.
inline constexpr std::string_view kPrecision = "precision";

/// Returns the precision that the optimizer has set; empty if there is none. Only for the treadle domain, because ONNX's QuantizeLinear has
/// another attribute `precision`, which is the dtype of a division.
inline std::string_view precision_of(const Node& node) {
  return node.domain == "treadle" ? node.attributes.get_string(kPrecision) : std::string_view();
}

/// Returns how a matrix product represents its operands in 16 bits; nullopt if it computes in float32. @throws Error(not_implemented) if
/// the library was built without the 16-bit type.
inline std::optional<kernels::Bf16Form> bf16_form(const Attributes& attributes) {
  const std::string_view name = attributes.get_string(kPrecision);
  std::optional<kernels::Bf16Form> form;
  if (name == name_of(Precision::bfloat16)) form = kernels::Bf16Form::one;
  if (name == name_of(Precision::bfloat16x3)) form = kernels::Bf16Form::three;
  if (name == name_of(Precision::float16)) form = kernels::Bf16Form::float16;
  if (form && !kIsBuilt<BFloat16>)
    throw Error(ErrorCode::not_implemented, "this library is built without BFloat16, which precision \"" + std::string(name) + "\" needs");
  return form;
}

}  // namespace treadle::ops
