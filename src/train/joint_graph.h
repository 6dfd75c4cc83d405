// What a joint module asks of its graph and program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::train {

/// Per value that the Yield hands out: whether somebody reads its bytes later. The caller, who may write to what it got, then gets a copy.
std::vector<bool> read_behind_yield(const Graph& graph);

/// Whether a run draws random numbers.
bool draws_numbers(const Graph& graph);

/// The last instruction that writes bytes of one of the results; kNoInstruction: none does.
exec::InstructionId made_by(const exec::Program& program, std::span<const int> results);

}  // namespace treadle::train
