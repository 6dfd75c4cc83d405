// Sorts items (sort keys with an index) on the GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace treadle::gpu {

inline constexpr size_t kItemBytes = 12;  ///< size of an item, as in items.glsl: three 32-bit words

/// Returns the length of a row of items for this many elements: the next power of two, as sort_items() requires.
inline int64_t item_extent(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
}

/// Sorts each row of items. @param extent  number of items in a row, from item_extent()
void sort_items(void* items, int64_t rows, int64_t extent);

}  // namespace treadle::gpu
