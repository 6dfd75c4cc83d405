// The chain of pointwise operators that a FusedElementwise node stands for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/elementwise_step.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"

namespace treadle::ops {

/// The steps are those that OpDef::step gives; the last one's result is the chain's.
/// @param inputs  dtypes of the node's inputs
/// @throws Error(invalid_model) for steps that make no chain; Error(resource_exhausted) if it needs more than the interpreter has.
kernels::ChainProgram compile_chain(std::span<const std::string> steps, std::vector<DType> inputs, DType output);

/// Output 0 may lie over any operand of a chain, whose first is this input, and over another one beside them.
std::vector<Alias> over_chain_inputs(int first, int beside = -1);

}  // namespace treadle::ops
