// What a run held when memory ran out: for the text of the error.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/allocation.h"
#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

/// A value, packed weights or scratch that is alive.
struct LiveBytes {
  std::string what;  ///< "\"v3\" (activations, of Conv \"conv1\")"
  size_t size_bytes = 0;
  std::string layer;  ///< layer_of() its node; empty: not known
};

/// Where a run on the host was.
struct RunPoint {
  size_t step = 0;              ///< in the order in which instructions run
  InstructionId instruction{};  ///< at that step
  bool begun = true;            ///< false: memory ran out before the first step
  bool by_readiness = false;    ///< instructions run at the same time: all that may be alive beside this one counts
};

/// A node whose kernel packs weights when the program is made.
struct PackedWeights {
  const Node* node = nullptr;
  size_t weight_bytes = 0, float_bytes = 0;  ///< float_bytes: of float32 that is packed as such
  size_t packed_bytes = 0;                   ///< 0: not yet
};

/// The account's bytes by class, and its limit; those of the accounts above it. A line each.
std::string describe_account(const RunControl& control);
std::string describe_account(const MemoryAccount* account);
std::string describe_account(const HeldMemory& held);
/// The nodes of the model that a node stands for, and the layers that it is in. A line each.
std::string describe_origin(const Node& node);
/// The layer that a node's own module is in: "layer1.0" of "layer1.0.conv1". Empty: the model names none.
std::string layer_of(const Node& node);
/// Lines: the largest first; and by layer.
std::string describe_largest(std::vector<LiveBytes> live);
/// What is alive in a run on the host, its arena against the plan, and what would need less.
std::string describe_memory(const RunState& state, const RunControl& control, const RunPoint& at);
/// What there is where the extents of a run could not be bound.
std::string describe_unbound(const Program& program, const RunControl& control);

/// With half the batch, and under a limit with half of it again until the arena fits, if it ever does: no line of its own, and empty if no
/// symbol is the first extent of inputs, or it would not help.
/// @param arena        whose: "the arena"
/// @param planned      its bytes as it is
/// @param arena_bytes  for values of the program's symbols
std::string describe_smaller_batch(const Program& program, const Binding& binding, std::string_view arena, size_t planned, size_t capacity,
                                   const std::function<size_t(const std::vector<int64_t>&)>& arena_bytes);

/// What there is while a program is made, and what would need less.
/// @param graph   its weights are listed; null: there is none yet
/// @param failed  whose weights were being packed; null: no node's
std::string describe_packing(const Graph* graph, std::span<const PackedWeights> nodes, const MemoryAccount* account, const Node* failed);
/// What there was when memory ran out while something was made that is let go of again.
std::string describe_making(const OutOfMemory& error, const MemoryAccount* account);
/// In a catch clause: the error under way goes on; if memory ran out, with the constants of the graph that was being made.
/// @param where  of an error that does not say it
[[noreturn]] void rethrow_with_graph(const Graph& graph, std::string_view where = "while the graph was optimised");

enum class Details : uint8_t { always, if_none };  ///< if_none: not behind an error that has details already

/// In a catch clause: the error under way goes on; if memory ran out, with these details behind its own.
/// @param details  lines. Where it fails, the error goes on as it is.
/// @param where    of an error that does not say it
[[noreturn]] void rethrow_with_memory(const std::function<std::string(const OutOfMemory&)>& details,
                                      std::string_view where = "before the first node of a run", Details details_are = Details::always);

}  // namespace treadle::exec
