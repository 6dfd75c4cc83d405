// Blocks that have their offsets: buffers come one after another, each gets a gap between those that are alive with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace treadle::memory {

enum class Fit : uint8_t {
  first,  ///< the lowest gap that is large enough
  best,   ///< the smallest gap that is large enough
};

/// Blocks placed so far, sorted by offset. Kept in chunks, whose combined lifetime lets a search skip them, and whose lifetimes lie side
/// by side, so that the compiler compares several at once.
class PlacedBlocks {
 public:
  /// The offset of a gap for `size_bytes` (a multiple of the alignment, as all sizes and ends here) that no block alive in
  /// [first, last) touches.
  size_t find_gap(size_t size_bytes, int32_t first, int32_t last, Fit fit);
  void insert(size_t offset, size_t size_bytes, int32_t first, int32_t last);
  void clear() { chunks_.clear(); }
  /// Effort since construction, about two nanoseconds each.
  uint64_t work() const { return work_; }

 private:
  static constexpr int kCapacity = 64;  // one bit each in a mask
  struct Chunk {
    int32_t count = 0, min_first = 0, max_last = 0;
    int32_t first[kCapacity], last[kCapacity];
    size_t offset[kCapacity], end[kCapacity];
  };
  static uint64_t overlapping(const Chunk& chunk, int32_t first, int32_t last);
  static void summarise(Chunk& chunk);
  size_t chunk_for(size_t offset) const;

  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t work_ = 0;
};

}  // namespace treadle::memory
