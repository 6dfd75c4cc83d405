// Compiles the chain of pointwise operators in a FusedElementwise node.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/elementwise_step.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"

namespace treadle::ops {

/// Compiles the steps that OpDef::step returned. The last step's result is the chain's.
/// @param inputs  dtypes of the node's inputs
/// @throws Error(invalid_model) if the steps are no chain; Error(resource_exhausted) if it is too long for the interpreter
kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output);

/// Returns aliases: output 0 may reuse the memory of any operand of the chain, from input `first` on, or of input `beside`.
std::vector<Alias> over_chain_inputs(int first, int beside = -1);

}  // namespace treadle::ops
