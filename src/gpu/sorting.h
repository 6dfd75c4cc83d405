// Sorting on the GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace treadle::gpu {

inline constexpr size_t kItemBytes = 12;  ///< of an item of items.glsl: three words

/// Items of a row with this many elements: sort_items() takes powers of two.
inline int64_t item_extent(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
}

/// Sorts each row of items. @param extent  of a row, from item_extent()
void sort_items(void* items, int64_t rows, int64_t extent);

}  // namespace treadle::gpu
