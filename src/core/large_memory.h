// Memory for what is large and lives long: the activations of a run, packed weights.
#pragma once

#include <cstddef>
#include <memory>

#include "treadle/tensor.h"

namespace treadle {

/// As Storage::allocate; the contents are not set. From 2 MB on the memory comes straight from the system, in huge pages where it has them
/// (a page of 4 KB costs half a microsecond when it is first touched, and a large model touches some ten thousand). What runs let
/// go (activations, scratch) is kept for the next that asks, up to 128 MB; the system may take it whenever it is short of memory. Where a
/// scope has an allocator of its own, that one is asked.
/// @throws Error(resource_exhausted)
std::shared_ptr<Storage> allocate_large(size_t size_bytes);

/// Gives what allocate_large() keeps for the next who asks back to the system.
void give_back_kept_memory();
/// Gives what is free in the C library's heap back to the system, holes between what is in use too, where the library
/// can: many small weights that were let go after packing leave such. Takes some tenths of a millisecond.
void give_back_free_memory();

}  // namespace treadle
