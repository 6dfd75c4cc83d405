// Functions of one number: what a pointwise operator of one operand computes, as kernels of other operators know it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/built_types.h"

namespace treadle::kernels {
enum class Unary : uint8_t;    // kernels/elementwise/unary_f32.h
enum class ChainOp : uint8_t;  // kernels/elementwise/chain.h
}  // namespace treadle::kernels

namespace treadle {

struct Node;
class Graph;
class GradientContext;
enum class ValueId : uint32_t;

/// y = f(x; a, b) in float32, which kernels apply to what they have in registers: a step of a chain (FusedElementwise), or the end of a
/// product or a convolution.
struct ScalarFunction {
  /// A parameter of the function: an attribute of the operator, or its constant operand `input`.
  struct Parameter {
    std::string_view name = "";  ///< as the attribute; empty: the function has no such parameter
    float otherwise = 0;         ///< its value where the node does not give it
    int input = -1;
  };

  std::string_view name;        ///< as steps of chains and attributes write it: the operator's type, or a name of its own ("GeluTanh")
  std::string_view alias = "";  ///< as NhwcConv's `activation` writes it; empty: products and convolutions do not end in it
  kernels::ChainOp step{};      ///< ChainOp::unary, or the step that computes it
  kernels::Unary code{};
  Parameter a = {}, b = {};
  /// Bounds of f(x), whatever x and the parameters are (NaN apart).
  float lowest = -std::numeric_limits<float>::infinity(), highest = std::numeric_limits<float>::infinity();
  bool keeps_zero = false;  ///< f(0) is 0, whatever the parameters are
  TrainingFunction<std::vector<ValueId>(GradientContext&)> gradient = nullptr;
  std::string_view op_type = "";                ///< the operator, where `name` is not its type; "-": no operator computes it alone
  std::string_view attribute = "", value = "";  ///< what tells it from other functions of that operator (approximate = tanh)
  std::string_view domain = "";
  /// Instead of a code: a function from outside the library. `y` may be `x`; called from several threads.
  void (*map)(const void* context, const float* x, float* y, int64_t count) = nullptr;
  const void* context = nullptr;
};

/// By name or alias; "domain:Type" for operators of other domains than ONNX's. Null if there is none.
const ScalarFunction* find_function(std::string_view name);
/// The function that a node computes of its first operand. Null if its operator is no function of one number.
const ScalarFunction* function_of(const Node& node);

/// The values of `a` and `b` in a node. Nothing if a parameter is not constant, or if bounds are in the wrong order (Clip).
struct FunctionParameters {
  float a = 0, b = 0;
};
std::optional<FunctionParameters> parameters_of(const Graph& graph, const Node& node, const ScalarFunction& function);

}  // namespace treadle
