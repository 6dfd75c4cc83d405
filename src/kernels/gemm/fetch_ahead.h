// Weights fetched before they are needed: what the tiles of products and of convolutions have in common. Fetching never faults, wherever it
// points.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Rows of a panel that L1 has no room for come from L2 a few steps before they are used: on an Intel core (2 MB of L2) products ran 5 to 7
/// % faster with it than with what the processor fetches by itself. Panels in L1 would lose as much to the additional loads.
inline constexpr int64_t kRowsAhead = 6, kPanelBytesInL1 = 36 * 1024;

/// A row of kVectors vectors of `vector_bytes`, `bytes_ahead` of `from`.
template <int kVectors>
__attribute__((always_inline)) inline void fetch_into_l1(const void* from, int64_t bytes_ahead, int64_t vector_bytes) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto at = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes_ahead + v * vector_bytes);
    __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 3);
  }
}

/// What is read after a panel goes into L2 while the panel is used: read when it is needed, it would hold up the first tile of every panel.
/// All tiles of a panel share the work, a few bytes further with each row of the panel, so that memory delivers at the pace of the sums:
/// with all of it in the first four tiles, products of 128 rows ran 15 % slower on an Intel core.
class NextLines {
 public:
  /// @param next  as large as `panel`, which has rows of `row_bytes`; null: the panel's own first line is fetched again and again
  NextLines(const void* next, const void* panel, int64_t row_bytes, int64_t tiles)
      : at_(reinterpret_cast<uintptr_t>(next != nullptr ? next : panel)),
        step_(next != nullptr ? static_cast<uintptr_t>((row_bytes + tiles - 1) / tiles) : 0) {}

  /// The share of one row of the panel.
  __attribute__((always_inline)) void fetch() {
    __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
    at_ += step_;
  }
  /// Past the share of a tile, which has a copy of its own.
  void skip(int64_t rows) { at_ += static_cast<uintptr_t>(rows) * step_; }

 private:
  uintptr_t at_, step_;
};

}  // namespace treadle::kernels
