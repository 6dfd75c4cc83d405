// Constants that several models and sessions of a process have in common, held once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "treadle/tensor.h"

namespace treadle {

/// Below a page it is not worth looking for another one.
inline constexpr size_t kWorthSharing = 4096;

/// Read-only memory with these bytes, the same for all who ask while one of them holds it. Nobody's account is charged.
/// @throws Error(resource_exhausted)
std::shared_ptr<Storage> shared_copy(std::span<const std::byte> bytes);
/// The same for memory that was just filled and that nobody will write again: it is taken over, or let go.
std::shared_ptr<Storage> share_storage(std::shared_ptr<Storage> fresh);

/// Blocks that are shared now, and how often one was found in place of another copy, or not found, since the process began.
struct SharedCounts {
  size_t count = 0, size_bytes = 0;
  int64_t hits = 0, misses = 0;
};
SharedCounts shared_storage_counts();

}  // namespace treadle
