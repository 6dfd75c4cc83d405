// Writes functions of one and two numbers into shaders.
#pragma once

#include <string_view>

#include "gpu/code_writer.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::gpu {

/// Writes function(x; a, b) of float32 values. Its formulas and its accuracy are those of the host's kernels
/// (kernels/elementwise/unary_f32.h), so they do not depend on the driver's functions.
Value write_unary(CodeWriter& shader, kernels::Unary function, Value a, Value b, Value x);

/// Writes a step of a chain (kernels/elementwise/chain.h) that has one operand, in float32: one of the steps from `floor` to `truth`.
Value write_step(CodeWriter& shader, kernels::ChainOp step, Value x);

/// Writes a step of a chain that has two operands, in their type: one of the steps from `add` to `logical_or`. Comparisons and logic give
/// truth values.
Value write_binary(CodeWriter& shader, kernels::ChainOp step, Value x, Value y);

/// Writes x to the power of y, in float32.
Value write_pow(CodeWriter& shader, Value x, Value y);

}  // namespace treadle::gpu
