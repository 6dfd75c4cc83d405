// An allocator that measures what a session uses, independently of the library's statistics.
#pragma once

#include <atomic>

#include "treadle/allocator.h"

namespace treadle::testing {

/// Measures the bytes that are in use, and the most that were in use at the same time.
class MeasuringAllocator final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "measuring"; }
  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    size_t now = live_ += size_bytes, seen = peak_.load();
    while (seen < now && !peak_.compare_exchange_weak(seen, now)) {
    }
    return plain_allocator()->allocate(size_bytes, memory_class);
  }
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override {
    live_ -= size_bytes;
    plain_allocator()->free(data, size_bytes, memory_class);
  }
  size_t live() const { return live_; }
  size_t peak() const { return peak_; }
  void reset() { peak_ = live_.load(); }

 private:
  std::atomic<size_t> live_{0}, peak_{0};
};

}  // namespace treadle::testing
