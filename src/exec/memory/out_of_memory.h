// What a run held when memory ran out: for the text of the error.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// A value, packed weights or scratch that is alive.
struct LiveBytes {
  std::string what;  ///< "\"v3\" (activations, of Conv \"conv1\")"
  size_t size_bytes = 0;
};

/// Where a run on the host was.
struct RunPoint {
  size_t step = 0;            ///< in the order in which instructions run
  size_t instruction = 0;     ///< at that step
  bool begun = true;          ///< false: memory ran out before the first step
  bool by_readiness = false;  ///< instructions run at the same time: all that may be alive beside this one counts
};

/// The account's bytes by class, and its limit; those of the accounts above it. A line each.
std::string describe_account(const RunControl& control);
/// The name of a node, and the nodes of the model that it stands for.
std::string describe_origin(const Node& node);
/// One line: the largest first.
std::string describe_largest(std::vector<LiveBytes> live);
/// What is alive in a run on the host, its arena against the plan, and what would need less.
std::string describe_memory(const RunState& state, const RunControl& control, const RunPoint& at);

/// With half the batch, and under a limit with half of it again until the arena fits, if it ever does: no line of its own, and empty if no
/// symbol is the first extent of inputs, or it would not help.
/// @param arena        whose: "the arena"
/// @param planned      its bytes as it is
/// @param arena_bytes  for values of the program's symbols
std::string describe_smaller_batch(const Program& program, const Binding& binding, std::string_view arena, size_t planned, size_t capacity,
                                   const std::function<size_t(const std::vector<int64_t>&)>& arena_bytes);

/// In a catch clause: the error under way goes on; if memory ran out, with these details behind its own.
/// @param details  lines. Where it fails, the error goes on as it is.
[[noreturn]] void rethrow_with_memory(const std::function<std::string()>& details);

}  // namespace treadle::exec
