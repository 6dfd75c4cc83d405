// Gathers slices by indices that are known to be valid.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle::gpu {

/// Gathers y[outer, num_indices, slice] from x[outer, extent, slice] by 64-bit indices. Numbers of elements are in words.
struct SliceGathering {
  void* y = nullptr;
  const void *x = nullptr, *indices = nullptr;
  size_t word_bytes = 4;
  int64_t outer = 1, extent = 0, num_indices = 0, slice = 1;
};
void gather_slices(const SliceGathering& gathering);

}  // namespace treadle::gpu
