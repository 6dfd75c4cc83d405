#include "memory/placed_blocks.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace treadle::memory {

uint64_t PlacedBlocks::overlapping(const Chunk& chunk, int32_t first, int32_t last) {
  uint8_t alive[kCapacity];
  for (int i = 0; i < kCapacity; ++i) alive[i] = static_cast<uint8_t>((chunk.first[i] < last) & (chunk.last[i] > first));
  uint64_t mask = 0;
  for (int i = 0; i < kCapacity; i += 8) {
    uint64_t bytes;
    static_assert(sizeof bytes == 8);
    __builtin_memcpy(&bytes, alive + i, 8);
    if constexpr (std::endian::native == std::endian::big) bytes = __builtin_bswap64(bytes);
    // The top byte of the product collects the lowest bits of all eight bytes.
    mask |= ((bytes * 0x0102040810204080U) >> 56) << i;
  }
  return mask;
}

size_t PlacedBlocks::find_gap(size_t size_bytes, int32_t first, int32_t last, Fit fit) {
  size_t free_from = 0;  // highest end of the live blocks seen so far
  size_t best_offset = 0, best_gap = std::numeric_limits<size_t>::max();
  for (const auto& chunk : chunks_) {
    ++work_;
    if (chunk->min_first >= last || chunk->max_last <= first) continue;
    uint64_t alive = overlapping(*chunk, first, last);
    work_ += 8 + static_cast<uint64_t>(std::popcount(alive));
    for (; alive != 0; alive &= alive - 1) {
      int i = std::countr_zero(alive);
      if (chunk->offset[i] >= free_from) {
        size_t gap = chunk->offset[i] - free_from;
        if (gap >= size_bytes && gap < best_gap) {
          if (fit == Fit::first) return free_from;
          best_offset = free_from, best_gap = gap;
        }
      }
      free_from = std::max(free_from, chunk->end[i]);
    }
  }
  return best_gap == std::numeric_limits<size_t>::max() ? free_from : best_offset;
}

size_t PlacedBlocks::chunk_for(size_t offset) const {
  auto after =
      std::upper_bound(chunks_.begin(), chunks_.end(), offset, [](size_t value, const auto& chunk) { return value < chunk->offset[0]; });
  return after == chunks_.begin() ? 0 : static_cast<size_t>(after - chunks_.begin()) - 1;
}

void PlacedBlocks::summarize(Chunk& chunk) {
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min(), kHighest = std::numeric_limits<int32_t>::max();
  chunk.min_first = kHighest;
  chunk.max_last = kLowest;
  for (int i = 0; i < chunk.count; ++i) {
    chunk.min_first = std::min(chunk.min_first, chunk.first[i]);
    chunk.max_last = std::max(chunk.max_last, chunk.last[i]);
  }
  for (int i = chunk.count; i < kCapacity; ++i) chunk.first[i] = kHighest, chunk.last[i] = kLowest;  // unused entries match no lifetime
}

void PlacedBlocks::insert(size_t offset, size_t size_bytes, int32_t first, int32_t last) {
  if (chunks_.empty()) {
    chunks_.push_back(std::make_unique<Chunk>());
    summarize(*chunks_.back());
  }
  size_t index = chunk_for(offset);
  if (chunks_[index]->count == kCapacity) {
    auto upper = std::make_unique<Chunk>();
    Chunk& lower = *chunks_[index];
    constexpr int kHalf = kCapacity / 2;
    std::copy(lower.first + kHalf, lower.first + kCapacity, upper->first);
    std::copy(lower.last + kHalf, lower.last + kCapacity, upper->last);
    std::copy(lower.offset + kHalf, lower.offset + kCapacity, upper->offset);
    std::copy(lower.end + kHalf, lower.end + kCapacity, upper->end);
    lower.count = upper->count = kHalf;
    summarize(lower);
    summarize(*upper);
    bool above = offset >= upper->offset[0];
    chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(upper));
    if (above) ++index;
  }
  Chunk& chunk = *chunks_[index];
  auto at = std::upper_bound(chunk.offset, chunk.offset + chunk.count, offset) - chunk.offset;
  auto put = [&](auto* values, auto value) {
    std::copy_backward(values + at, values + chunk.count, values + chunk.count + 1);
    values[at] = value;
  };
  put(chunk.first, first);
  put(chunk.last, last);
  put(chunk.offset, offset);
  put(chunk.end, offset + size_bytes);
  ++chunk.count;
  chunk.min_first = std::min(chunk.min_first, first);
  chunk.max_last = std::max(chunk.max_last, last);
}

}  // namespace treadle::memory
