// Working memory for the chunks of a parallel loop. The caller's scratch is divided into equal slots; each chunk borrows a slot and returns
// it. Thus a chunk usually gets a slot that is still in cache, and as many slots as threads suffice.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle::kernels {

class ScratchSlots {
 public:
  static constexpr int kMaxSlots = 64;
  /// Returns the number of slots for a loop of `num_chunks` chunks on at most `max_threads` threads. If there are more threads, they wait.
  static int count(int max_threads, int64_t num_chunks) {
    return static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(max_threads, num_chunks), 1, kMaxSlots));
  }

  ScratchSlots(void* scratch, size_t slot_bytes, int num_slots)
      : scratch_(static_cast<std::byte*>(scratch)),
        slot_bytes_(slot_bytes),
        free_(num_slots >= 64 ? ~uint64_t{0} : (uint64_t{1} << num_slots) - 1) {}

  /// Holds a slot while it exists. Its owner must not wait for other chunks (no nested loop on the pool), as these may wait for a slot.
  class Lease {
   public:
    explicit Lease(ScratchSlots& slots) : slots_(slots), index_(slots.take()) {}
    ~Lease() { slots_.free_.fetch_or(uint64_t{1} << index_, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::byte* data() const { return slots_.scratch_ + static_cast<size_t>(index_) * slots_.slot_bytes_; }

   private:
    ScratchSlots& slots_;
    int index_;
  };

 private:
  int take() {
    for (;;) {
      uint64_t free = free_.load(std::memory_order_relaxed);
      if (free != 0) {
        const uint64_t bit = free & (~free + 1);
        if (free_.compare_exchange_weak(free, free & ~bit, std::memory_order_acquire)) return std::countr_zero(bit);
      } else {
#if defined(__x86_64__)
        _mm_pause();
#endif
      }
    }
  }
  std::byte* scratch_;
  size_t slot_bytes_;
  std::atomic<uint64_t> free_;
};

/// Returns the bytes of `count` elements, rounded up to whole cache lines.
template <typename T>
constexpr size_t aligned_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(T) + 63) & ~size_t{63};
}

}  // namespace treadle::kernels
