// Compiles the chain of pointwise operators of a FusedElementwise node to a program for the host's interpreter.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/elementwise_step.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"

namespace treadle::ops {

/// Compiles the steps of a chain, as OpDef::step returns them. The result of the chain is that of the last step.
/// @param inputs  dtypes of the node's inputs
/// @throws Error(invalid_model) if the steps are not a valid chain; Error(resource_exhausted) if it is too long for the interpreter
kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output);

/// Returns the aliases that let output 0 reuse the memory of an operand of the chain (input `first` or a later one) or of input `beside`.
std::vector<Alias> over_chain_inputs(int first, int beside = -1);

}  // namespace treadle::ops
