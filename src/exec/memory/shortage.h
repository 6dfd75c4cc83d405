// What is held when memory runs out: the texts that errors end with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/values/held_memory.h"
#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

/// A value, packed weights or scratch that is alive.
struct LiveBytes {
  std::string what;  ///< "\"v3\" (activations, of Conv \"conv1\")"
  size_t size_bytes = 0;
  std::string layer;  ///< of the model, that its node is in; empty: not known
};

/// The account's bytes by class, and its limit; then those of the accounts above it. One line for each account.
std::string describe_account(const MemoryAccount* account);
std::string describe_account(const HeldMemory& held);
/// Two lines: the largest first; and sums by layer.
std::string describe_largest(std::vector<LiveBytes> live);
/// The first names, in quotes, and how many more there are.
std::string quoted(const std::vector<std::string>& names);

enum class Details : uint8_t { always, if_none };  ///< if_none: not behind an error that has details already

/// In a catch clause: the error under way goes on; if memory ran out, with these details behind its own.
/// @param details  lines. Where it fails, the error goes on as it is.
/// @param where    for an error that does not say where it came up
[[noreturn]] void rethrow_with_memory(const std::function<std::string(const OutOfMemory&)>& details,
                                      std::string_view where = "before the first node of a run", Details details_are = Details::always);

}  // namespace treadle::exec
