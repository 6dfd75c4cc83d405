// The table of pointwise functions of one number, and the steps by which fused chains compute pointwise operators.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/function_body.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::ops {

/// Returns the operator's rows of the table; empty if it is not a function of one number.
std::span<const ScalarFunction> functions_named(std::string_view op_type);

/// Marks the operator as pointwise and adds the table's facts: whether it keeps zeros, its chain step, gradient and precision.
OpDef with_function_facts(OpDef op);
/// Declares the steps by which a chain of float32 computes a pointwise operator of two operands. `reversed` takes the operands in the other
/// order.
OpDef with_chain_steps(OpDef op, kernels::ChainOp forward, kernels::ChainOp reversed);
OpDef with_boolean_steps(OpDef op, kernels::ChainOp step);

/// Implements OpDef::step for functions of one float32.
std::optional<PointwiseStep> function_step(const Graph& graph, const Node& node);

/// Returns the dtype of a tensor of known rank; undefined for any other value.
DType dtype_of_value(const Graph& graph, ValueId id);
bool has_one_element(const Graph& graph, ValueId id);
/// Returns true if all inputs from `first` on have this dtype.
bool all_inputs_are(const Graph& graph, const Node& node, DType dtype, size_t first = 0);

/// Finds a function by name, not by alias, as the attribute `activations` of recurrent operators spells it ("leakyrelu").
const ScalarFunction* find_function_ignoring_case(std::string_view name);

/// Writes GeluSlope with operators that ONNX has had since opset 9.
std::string write_gelu_slope(FunctionBody& body, const std::string& x);

/// Returns the function that a product, convolution or recurrent cell applies, by name or alias; Unary::none for "" and "none".
/// @throws Error(invalid_model) for any other name.
kernels::Unary activation_named(std::string_view name);

}  // namespace treadle::ops
