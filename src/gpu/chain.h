// Translates chains of pointwise operators (graph/elementwise_step.h) to shader code.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "gpu/code_writer.h"
#include "graph/elementwise_step.h"

namespace treadle::gpu {

/// A function that appends the code of a computation to a shader: it takes the operands and returns the result.
using Formula = std::function<Value(CodeWriter&, std::span<const Value>)>;

/// Returns the code that computes a chain from its inputs. Each step gives the same result as a node of its operator would, rounded to the
/// node's dtype.
/// @param inputs  dtypes of the values that steps read
/// @return nullopt if shaders do not support a step with operands of these types, or if the result of the last step does not have the dtype
///   `output`
std::optional<Formula> chain_formula(std::span<const ElementwiseStep> steps, std::vector<DType> inputs, DType output);

/// Returns the code of QuantizeLinear. Its operands are x, scale and, if given, the zero point. If shaders cannot compute with the codes'
/// type, the zero point must be a float32 and so is the result: the number for which the code stands, not yet rounded if codes are floats.
Formula quantization_formula(DType codes);
/// Appends the code of DequantizeLinear in float32. The operands are x, scale and, if given, the zero point.
Value write_dequantization(CodeWriter& code, std::span<const Value> operands);

}  // namespace treadle::gpu
