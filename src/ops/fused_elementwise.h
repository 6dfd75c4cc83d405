// The chain of pointwise operators that a FusedElementwise node stands for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/elementwise_step.h"
#include "kernels/elementwise/chain.h"

namespace treadle::ops {

/// Every operator that a chain can take, by ONNX's name; the last step's result is the chain's.
/// @param inputs  dtypes of the node's inputs
/// @throws Error(invalid_model) for steps that make no chain; Error(resource_exhausted) if it needs more than the interpreter has.
kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output);

/// True if a chain can compute what this operator does (of whatever operands).
bool is_chain_operator(std::string_view op_type);

}  // namespace treadle::ops
