// Prefetching of weights, shared by the GEMM and convolution tiles. Prefetching an invalid address is harmless.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Micro-kernels prefetch rows of a panel that exceeds L1 from L2, kRowsAhead rows in advance. On an Intel core with 2 MB of L2, this made
/// products 5 to 7 % faster. For panels that fit L1, the additional loads would cost as much as they gain.
inline constexpr int64_t kRowsAhead = 6, kPanelBytesInL1 = 36 * 1024;

/// Prefetches into L1 a row of kVectors vectors of `vector_bytes` each. The row begins `bytes_ahead` bytes after `from`.
template <int kVectors>
__attribute__((always_inline)) inline void fetch_into_l1(const void* from, int64_t bytes_ahead, int64_t vector_bytes) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto at = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes_ahead + v * vector_bytes);
    __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 3);
  }
}

/// Prefetches the next panel into L2 while the present one is in use; otherwise the first tile of every panel would wait for memory. Each
/// tile prefetches an equal share, a few bytes for each row of B that it reads, so that memory is loaded evenly. When the first four tiles
/// prefetched everything, products of 128 rows ran 15 % slower on an Intel core.
class NextLines {
 public:
  /// @param next  the next panel, as large as `panel`, whose rows have `row_bytes` bytes; null: there is none
  /// @param tiles  number of tiles that share the prefetches
  NextLines(const void* next, const void* panel, int64_t row_bytes, int64_t tiles)
      : at_(reinterpret_cast<uintptr_t>(next != nullptr ? next : panel)),
        step_(next != nullptr ? static_cast<uintptr_t>((row_bytes + tiles - 1) / tiles) : 0) {}

  /// Prefetches the bytes that fall to one row of B. To be called once for each row that a tile reads.
  __attribute__((always_inline)) void fetch() {
    __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
    at_ += step_;
  }
  /// Skips the share of a tile that reads `rows` rows of B. Each tile advances its own copy of this object.
  void skip(int64_t rows) { at_ += static_cast<uintptr_t>(rows) * step_; }

 private:
  uintptr_t at_, step_;
};

}  // namespace treadle::kernels
