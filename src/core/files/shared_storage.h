// Shares equal constants between models and sessions of a process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "treadle/tensor.h"

namespace treadle {

/// Minimum size in bytes. For smaller blocks, the search for an equal block costs more than it saves.
inline constexpr size_t kWorthSharing = 4096;

/// Returns read-only memory with these bytes. All callers that pass equal bytes get the same block as long as any of them keeps it. The
/// memory is charged to no account. @throws Error(resource_exhausted)
std::shared_ptr<Storage> shared_copy(std::span<const std::byte> bytes);
/// Like shared_copy(), for memory that was just filled and will not be written again. Frees it if equal memory exists already.
std::shared_ptr<Storage> share_storage(std::shared_ptr<Storage> fresh);

/// Blocks that are shared now, and how often an equal one was found or not found since the process began.
struct SharedCounts {
  size_t count = 0, size_bytes = 0;
  int64_t hits = 0, misses = 0;
};
SharedCounts shared_storage_counts();

}  // namespace treadle
