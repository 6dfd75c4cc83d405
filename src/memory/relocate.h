// Values that change places within one block of memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace treadle::memory {

struct Relocation {
  size_t from, to, size_bytes;
};

/// A place outside of the block, for values that are in one another's way all around.
struct Aside {
  std::function<void(size_t move, size_t offset)> put;   ///< the value of this move lies there
  std::function<void(size_t move, size_t offset)> take;  ///< and comes there; once for each `put`
};

/// Moves every value to its place, and over others only once they have left. Each is copied once; where values wait for one another in a
/// ring, the smallest waits in a part of the block that nobody comes to or goes from, or aside if there is none.
/// @param size_bytes  of the block. No two values overlap, neither before nor behind.
void relocate(std::byte* block, size_t size_bytes, std::span<const Relocation> moves, const Aside& aside);

}  // namespace treadle::memory
