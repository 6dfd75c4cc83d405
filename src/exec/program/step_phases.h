// Divides a training step into its phases: forward, backward, communication, optimizer.
#pragma once

#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// Returns all nodes that the outputs with these names depend on.
std::unordered_set<const Node*> forward_part(const Graph& graph, std::span<const std::string> names);

/// Returns the phase of each instruction. Exchanges of values with other ranks are communication; updates of state are optimizer.
/// Instructions before a Yield are forward; without a Yield, those that the outputs named in `forward` depend on are forward. All others
/// are backward.
/// @param commit_from  the first update of state (Program::commit_from)
IdVector<InstructionId, StepPhase> step_phases(const Graph& graph, IdSpan<InstructionId, const Instruction> instructions,
                                               InstructionId commit_from, std::span<const std::string> forward);

}  // namespace treadle::exec
