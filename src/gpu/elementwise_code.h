// Writes functions of one and two numbers into shaders.
#pragma once

#include <string_view>

#include "gpu/code_writer.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::gpu {

/// function(x; a, b) of float32 values, by the formulas and with the accuracy of the host's kernels (kernels/elementwise/unary_f32.h),
/// which do not depend on the driver's own functions.
Value write_unary(CodeWriter& shader, kernels::Unary function, Value a, Value b, Value x);

/// Writes a chain's step (kernels/elementwise/chain.h) of one operand in float32: the steps from `floor` to `truth`.
Value write_step(CodeWriter& shader, kernels::ChainOp step, Value x);

/// Writes a chain's step of two operands in their type: the steps from `add` to `logical_or`. Comparisons and logic give truth values.
Value write_binary(CodeWriter& shader, kernels::ChainOp step, Value x, Value y);

/// Writes x to the power of y, in float32.
Value write_pow(CodeWriter& shader, Value x, Value y);

}  // namespace treadle::gpu
