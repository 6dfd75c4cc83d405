// Appends the code of pointwise functions of one and two operands to a shader.
#pragma once

#include <string_view>

#include "gpu/code_writer.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/unary_f32.h"

namespace treadle::gpu {

/// Appends function(x; a, b) in float32. Its formula and accuracy are those of the host's kernels (kernels/elementwise/unary_f32.h), so
/// they do not depend on the functions of the driver.
Value write_unary(CodeWriter& shader, kernels::Unary function, Value a, Value b, Value x);

/// Appends, in float32, a step of a chain (kernels/elementwise/chain.h) with one operand: a step from `floor` to `truth` in ChainOp.
Value write_step(CodeWriter& shader, kernels::ChainOp step, Value x);

/// Appends a step of a chain with two operands, in their type: a step from `add` to `logical_or` in ChainOp. Comparisons and logical
/// operators give booleans.
Value write_binary(CodeWriter& shader, kernels::ChainOp step, Value x, Value y);

/// Appends x to the power of y in float32.
Value write_pow(CodeWriter& shader, Value x, Value y);

}  // namespace treadle::gpu
