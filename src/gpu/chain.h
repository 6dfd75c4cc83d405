// Writes chains of pointwise operators (graph/elementwise_step.h) as shader code.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "gpu/code_writer.h"
#include "graph/elementwise_step.h"

namespace treadle::gpu {

/// Writes a computation on values.
using Formula = std::function<Value(CodeWriter&, std::span<const Value>)>;

/// Returns the formula that computes a chain from its inputs. Each step computes the same as a node of its operator, whose result has a
/// dtype.
/// @param inputs  dtypes of the values that steps read
/// @return nullopt if shaders do not support a step with operands of these types, or if the result of the last step does not have the dtype
///   `output`
std::optional<Formula> chain_formula(std::span<const ElementwiseStep> steps, std::vector<DType> inputs, DType output);

/// Returns the formula of QuantizeLinear for x, scale and, if given, zero point. If shaders have no arithmetic for the codes, the zero
/// point is given as a float32, and the result is the code's number as a float32, which is not rounded yet if the codes are floats.
Formula quantization_formula(DType codes);
/// Writes the formula of DequantizeLinear for x, scale and, if given, zero point, in float32.
Value write_dequantization(CodeWriter& code, std::span<const Value> operands);

}  // namespace treadle::gpu
