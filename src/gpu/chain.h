// Chains of pointwise operators (graph/elementwise_step.h) as code of shaders.
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

/// Returns the computation of a chain on its inputs. Each step computes the same as a node of its operator, whose result has a dtype.
/// @param inputs  dtypes of the values that steps read
/// @return nullopt if shaders do not know a step with operands of these types, or if the last one does not give `output`
std::optional<Formula> chain_formula(std::span<const ElementwiseStep> steps, std::vector<DType> inputs, DType output);

/// Returns the computation of QuantizeLinear on x, scale and perhaps zero point.
Formula quantization_formula(DType codes);
/// The same of DequantizeLinear, in float32.
Value write_dequantization(CodeWriter& code, std::span<const Value> operands);

}  // namespace treadle::gpu
