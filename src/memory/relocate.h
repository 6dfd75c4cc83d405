// Moves values within one block of memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace treadle::memory {

struct Relocation {
  size_t from, to, size_bytes;
};

/// Memory outside the block, for values whose targets form a cycle.
struct Aside {
  std::function<void(size_t move, size_t offset)> put;   ///< copies the value of this move from this offset of the block to other memory
  std::function<void(size_t move, size_t offset)> take;  ///< copies the value back to this offset; called once for each `put`
};

/// Moves every value to its target. A value is overwritten only after it has been moved, and each value is copied once. But if targets form
/// a cycle, its smallest value is first copied to an unused part of the block or, if there is none, to other memory.
/// @param size_bytes  size of the block. Neither the values' sources nor their targets overlap
void relocate(std::byte* block, size_t size_bytes, std::span<const Relocation> moves, const Aside& aside);

}  // namespace treadle::memory
