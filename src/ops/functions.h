// The table of pointwise functions of one operand, and the steps by which fused chains of nodes compute pointwise operators.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/function_body.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::ops {

/// Returns the table's rows for an operator; the span is empty if the operator is not a pointwise function of one operand.
std::span<const ScalarFunction> functions_named(std::string_view op_type);

/// Marks an operator as pointwise and copies the table's facts to it: whether zeros stay zeros, its chain step, gradient and precision.
OpDef with_function_facts(OpDef op);
/// Declares how a chain of float32 steps computes a pointwise operator of two operands. `reversed` computes it with the two operands
/// swapped.
OpDef with_chain_steps(OpDef op, kernels::ChainOp forward, kernels::ChainOp reversed);
OpDef with_boolean_steps(OpDef op, kernels::ChainOp step);

/// Implements OpDef::step for functions of one float32 tensor.
std::optional<PointwiseStep> function_step(const Graph& graph, const Node& node);

/// Returns the dtype of a tensor of known rank; undefined for any other value.
DType dtype_of_value(const Graph& graph, ValueId id);
bool has_one_element(const Graph& graph, ValueId id);
/// Returns true if all inputs from index `first` on have this dtype.
bool all_inputs_are(const Graph& graph, const Node& node, DType dtype, size_t first = 0);

/// Finds a function by its name (not its alias), ignoring case: the attribute `activations` of recurrent operators writes "leakyrelu".
const ScalarFunction* find_function_ignoring_case(std::string_view name);

/// Writes GeluSlope as a composition of operators that ONNX has had since opset 9.
std::string write_gelu_slope(FunctionBody& body, const std::string& x);

/// Returns the activation that a matrix product, convolution or recurrent cell applies to its result. `name` is its name or alias; for ""
/// and "none" the result is Unary::none. @throws Error(invalid_model) for any other name.
kernels::Unary activation_named(std::string_view name);

}  // namespace treadle::ops
