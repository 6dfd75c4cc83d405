// Moves values within one block of memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace treadle::memory {

struct Relocation {
  size_t from, to, size_bytes;
};

/// Memory outside the block, for values that block each other in a ring.
struct Aside {
  std::function<void(size_t move, size_t offset)> put;   ///< copies the value of this move, at this offset of the block, aside
  std::function<void(size_t move, size_t offset)> take;  ///< copies it back to this offset; once per `put`
};

/// Moves every value to its target; a value is overwritten only after it has been moved. Each value is copied once. If the targets form a
/// cycle, the smallest value of it is first moved to an unused part of the block or, if there is none, to other memory.
/// @param size_bytes  of the block. Values do not overlap, either before or after
void relocate(std::byte* block, size_t size_bytes, std::span<const Relocation> moves, const Aside& aside);

}  // namespace treadle::memory
