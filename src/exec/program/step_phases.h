// The parts that a training step consists of, and what they leave in memory.
#pragma once

#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// What the forward part's results, by their names, are made by.
std::unordered_set<const Node*> forward_part(const Graph& graph, std::span<const std::string> names);

/// Of each instruction: what stands before a Yield is forward, or without one what the outputs named `forward` depend on; what other ranks
/// take part in is communication; updates of state are the optimizer's; the rest is backward.
/// @param commit_from  the first update of state
IdVector<InstructionId, StepPhase> step_phases(const Graph& graph, IdSpan<InstructionId, const Instruction> instructions,
                                               InstructionId commit_from, std::span<const std::string> forward);

}  // namespace treadle::exec
