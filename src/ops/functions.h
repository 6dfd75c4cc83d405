// Pointwise operators as chains, products and convolutions know them: one table of functions of one number, and the steps of chains.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/function_body.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::ops {

/// The operator's rows of the table; none if it is no function of one number.
std::span<const ScalarFunction> functions_named(std::string_view op_type);

/// An operator that is pointwise, with what the table says of its functions.
OpDef with_function_facts(OpDef op);
/// A pointwise operator of two operands, as a step of a chain of float32 (or of booleans).
OpDef with_chain_steps(OpDef op, kernels::ChainOp forward, kernels::ChainOp reversed);
OpDef with_boolean_steps(OpDef op, kernels::ChainOp step);

/// OpDef::step of a function of one float32.
std::optional<PointwiseStep> function_step(const Graph& graph, const Node& node);

/// The dtype of a tensor of known rank; undefined for all else.
DType dtype_of_value(const Graph& graph, ValueId id);
bool has_one_element(const Graph& graph, ValueId id);
/// From input `first` on.
bool all_inputs_are(const Graph& graph, const Node& node, DType dtype, size_t first = 0);

/// By name only, as recurrent operators write it ("leakyrelu").
const ScalarFunction* find_function_ignoring_case(std::string_view name);

/// GeluSlope of a value, in operators of ONNX since opset 9.
std::string write_gelu_slope(FunctionBody& body, const std::string& x);

/// The code of a function that products, convolutions and recurrent cells apply, by name or alias; Unary::none for "" and "none".
/// @throws Error(invalid_model) for a name that is none of them.
kernels::Unary activation_named(std::string_view name);

}  // namespace treadle::ops
