// Analyses of a JointModule's graph and of the program compiled from it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::train {

/// For each value that Yield (the node between forward and backward pass) returns, tells whether the run reads its memory later. If so, the
/// caller must get a copy, since callers may overwrite what they get.
std::vector<bool> read_behind_yield(const Graph& graph);

/// Returns true if the graph contains random operators.
bool draws_numbers(const Graph& graph);

/// Returns the last instruction that writes to the memory of any of the outputs `results` (indices); kNoInstruction if none does.
exec::InstructionId made_by(const exec::Program& program, std::span<const int> results);

}  // namespace treadle::train
