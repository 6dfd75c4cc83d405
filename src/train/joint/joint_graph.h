// Answers questions that a joint module asks about its graph and its program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::train {

/// Returns, for each value that the Yield returns, true if its memory is read later in the run. The caller then gets a copy, because it may
/// overwrite the memory.
std::vector<bool> read_behind_yield(const Graph& graph);

/// Returns true if the graph contains random operators.
bool draws_numbers(const Graph& graph);

/// Returns the last instruction that writes to the memory of any of the results; kNoInstruction if none does.
exec::InstructionId made_by(const exec::Program& program, std::span<const int> results);

}  // namespace treadle::train
