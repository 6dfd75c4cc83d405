// Finds gaps for buffers one by one, between placed blocks with overlapping lifetimes.
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

/// The blocks placed so far, sorted by offset and grouped in chunks. A search skips chunks by the range of their lifetimes. The lifetimes
/// of a chunk are stored in arrays, so that the compiler can compare several at once.
class PlacedBlocks {
 public:
  /// Returns the offset of a gap of `size_bytes` bytes that does not overlap any block alive in [first, last). All sizes and ends are
  /// multiples of the alignment.
  size_t find_gap(size_t size_bytes, int32_t first, int32_t last, Fit fit);
  void insert(size_t offset, size_t size_bytes, int32_t first, int32_t last);
  void clear() { chunks_.clear(); }
  /// The work done since construction, in units of about two nanoseconds.
  uint64_t work() const { return work_; }

 private:
  static constexpr int kCapacity = 64;  // maximum number of blocks of a chunk, because each has one bit in a mask
  struct Chunk {
    int32_t count = 0, min_first = 0, max_last = 0;
    int32_t first[kCapacity], last[kCapacity];
    size_t offset[kCapacity], end[kCapacity];
  };
  static uint64_t overlapping(const Chunk& chunk, int32_t first, int32_t last);
  static void summarize(Chunk& chunk);
  size_t chunk_for(size_t offset) const;

  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t work_ = 0;
};

}  // namespace treadle::memory
