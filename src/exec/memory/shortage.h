// Describes the memory in use when memory runs out, for error messages.
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

/// The bytes of a live value, packed weights, or scratch memory.
struct LiveBytes {
  std::string what;  ///< text such as "\"v3\" (activations, of Conv \"conv1\")"
  size_t size_bytes = 0;
  std::string layer;  ///< layer of the node that makes it; empty: unknown
};

/// Describes the account's bytes by class and its limit, then its parents': one line per account.
std::string describe_account(const MemoryAccount* account);
std::string describe_account(const HeldMemory& held);
/// Returns two lines: the largest items, and sums by layer.
std::string describe_largest(std::vector<LiveBytes> live);
/// Returns the first names, quoted, and the number of remaining ones.
std::string quoted(const std::vector<std::string>& names);

enum class Details : uint8_t { always, if_none };  ///< when to append details; if_none: only to an error without details

/// Rethrows the current exception. If it says that memory ran out, appends these details to its text. Call it in a catch clause.
/// @param details  returns lines; if it throws, the original error is rethrown.
/// @param where    the name of the operation, used if the error does not name one
[[noreturn]] void rethrow_with_memory(const std::function<std::string(const OutOfMemory&)>& details,
                                      std::string_view where = "before the first node of a run", Details details_are = Details::always);

}  // namespace treadle::exec
