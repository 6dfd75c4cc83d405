// Scalar functions: the functions that unary pointwise operators compute, in a form that kernels of other operators can apply.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/values/built_types.h"

namespace treadle::kernels {
enum class Unary : uint8_t;    // defined in kernels/elementwise/unary_f32.h
enum class ChainOp : uint8_t;  // defined in kernels/elementwise/chain.h
}  // namespace treadle::kernels

namespace treadle {

struct Node;
class Graph;
class GradientContext;
enum class ValueId : uint32_t;

/// y = f(x; a, b) in float32. Kernels apply it to values in registers: as a step of a chain (FusedElementwise), or at the end of a product
/// or convolution.
struct ScalarFunction {
  /// A parameter of the function: the attribute `name` of the operator, or its constant operand `input`.
  struct Parameter {
    std::string_view name = "";  ///< name of the attribute; empty: the function has no such parameter
    float otherwise = 0;         ///< the default of the attribute
    int input = -1;
  };

  std::string_view name;        ///< name in chain steps and attributes: the operator's type, or a name such as "GeluTanh"
  std::string_view alias = "";  ///< name in the attribute `activation` of NhwcConv; empty: products and convolutions cannot apply it
  kernels::ChainOp step{};      ///< the chain step that computes it: ChainOp::unary, or a step of its own
  kernels::Unary code{};
  Parameter a = {}, b = {};
  /// Bounds of f(x) for all x and all parameters (NaN excepted).
  float lowest = -std::numeric_limits<float>::infinity(), highest = std::numeric_limits<float>::infinity();
  bool keeps_zero = false;  ///< f(0) is 0 for all parameters
  TrainingFunction<std::vector<ValueId>(GradientContext&)> gradient = nullptr;
  std::string_view op_type = "";                ///< the operator, if `name` is not its type; "-": no operator computes only this function
  std::string_view attribute = "", value = "";  ///< attribute, and its value, that select this function (approximate = tanh)
  std::string_view domain = "";
  /// The function of a custom operator, used instead of `code`. `y` may be the same memory as `x`; several threads may call it.
  void (*map)(const void* context, const float* x, float* y, int64_t count) = nullptr;
  const void* context = nullptr;
};

/// Finds a function by name or alias; "domain:Type" for domains other than ONNX's. Returns null if there is none.
const ScalarFunction* find_function(std::string_view name);
/// Returns the scalar function that a node applies to its first operand; null if its operator does not compute a scalar function.
const ScalarFunction* function_of(const Node& node);

/// Values of the parameters `a` and `b` for a node. parameters_of() returns nullopt if a parameter is not constant, or if the lower bound
/// exceeds the upper one (Clip).
struct FunctionParameters {
  float a = 0, b = 0;
};
std::optional<FunctionParameters> parameters_of(const Graph& graph, const Node& node, const ScalarFunction& function);

}  // namespace treadle
