#include "memory/allocators.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>

#include "treadle/error.h"

namespace treadle {
namespace memory {
namespace {

/// An allocator that forwards all calls to another one.
template <typename Base>
class Forwarding : public Base {
 public:
  explicit Forwarding(std::shared_ptr<Allocator> upstream) : upstream_(std::move(upstream)) {}
  void renew(void* data, size_t size_bytes) noexcept override { upstream_->renew(data, size_bytes); }
  size_t trim() noexcept override { return upstream_->trim(); }
  void visit_regions(const std::function<void(const MemoryRegion&)>& visit) const override { upstream_->visit_regions(visit); }
  void check() override { upstream_->check(); }

 protected:
  const std::shared_ptr<Allocator> upstream_;
};

// Fills memory with bytes of all ones, which are NaN in every floating-point type of at least 16 bits, and -1 in integers.
class NanAllocator final : public Forwarding<Allocator> {
 public:
  using Forwarding::Forwarding;
  std::string_view name() const noexcept override { return "nan"; }
  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    void* data = upstream_->allocate(size_bytes, memory_class);
    if (data) std::memset(data, 0xFF, size_bytes);
    return data;
  }
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override { upstream_->free(data, size_bytes, memory_class); }
  void renew(void* data, size_t size_bytes) noexcept override {
    upstream_->renew(data, size_bytes);
    std::memset(data, 0xFF, size_bytes);
  }
};

// Fills memory with large numbers, different ones each time. If a program reads unwritten memory, two runs then differ, even where NaN
// would be lost (integers, comparisons).
class PatternAllocator final : public Forwarding<Allocator> {
 public:
  using Forwarding::Forwarding;
  std::string_view name() const noexcept override { return "pattern"; }
  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    void* data = upstream_->allocate(size_bytes, memory_class);
    if (data) fill(data, size_bytes);
    return data;
  }
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override {
    fill(data, size_bytes);
    upstream_->free(data, size_bytes, memory_class);
  }
  void renew(void* data, size_t size_bytes) noexcept override {
    upstream_->renew(data, size_bytes);
    fill(data, size_bytes);
  }

 private:
  void fill(void* data, size_t size_bytes) noexcept {
    // Alternates between three bytes. Repeated, they are 4e34, 3e35 and 1.3e36 in float32 and bfloat16, and at least 44,832 in float16.
    constexpr unsigned kFirst = 0x79, kKinds = 3;
    std::memset(data, static_cast<int>(kFirst + num_fills_.fetch_add(1, std::memory_order_relaxed) % kKinds), size_bytes);
  }
  std::atomic<unsigned> num_fills_{0};
};

class Recording final : public Forwarding<RecordingAllocator> {
 public:
  using Forwarding::Forwarding;
  std::string_view name() const noexcept override { return "recording"; }

  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    std::lock_guard lock(mutex_);
    // Reserves entries for this event and for the later release of every live block, so that free() cannot fail.
    const size_t needed = events_.size() + static_cast<size_t>(num_live_) + 2;
    if (events_.capacity() < needed) events_.reserve(2 * needed);
    void* data = upstream_->allocate(size_bytes, memory_class);
    if (!data) return nullptr;
    ++num_live_;
    events_.push_back({now(), data, size_bytes, memory_class, false});
    return data;
  }
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override {
    std::lock_guard lock(mutex_);
    --num_live_;
    if (events_.size() < events_.capacity()) events_.push_back({now(), data, size_bytes, memory_class, true});
    upstream_->free(data, size_bytes, memory_class);
  }
  std::vector<Event> events() const override {
    std::lock_guard lock(mutex_);
    return events_;
  }
  void clear() override {
    std::lock_guard lock(mutex_);
    events_.clear();  // keeps its capacity, so that recording allocates less
  }

 private:
  int64_t now() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count(); }
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  int64_t num_live_ = 0;
};

}  // namespace

std::shared_ptr<Allocator> make_nan_allocator(std::shared_ptr<Allocator> upstream) {
  return std::make_shared<NanAllocator>(std::move(upstream));
}

std::shared_ptr<Allocator> make_pattern_allocator(std::shared_ptr<Allocator> upstream) {
  return std::make_shared<PatternAllocator>(std::move(upstream));
}

std::shared_ptr<RecordingAllocator> make_recording_allocator(std::shared_ptr<Allocator> upstream) {
  return std::make_shared<Recording>(std::move(upstream));
}

}  // namespace memory

std::shared_ptr<Allocator> make_allocator(std::string_view kinds, std::shared_ptr<Allocator> upstream) {
  if (!upstream) upstream = plain_allocator();
  const size_t plus = kinds.find('+');
  if (plus != std::string_view::npos) upstream = make_allocator(kinds.substr(plus + 1), std::move(upstream));
  const std::string_view kind = kinds.substr(0, plus);
  if (kind == "plain") return upstream;
  if (kind == "arena") return memory::make_arena_allocator(std::move(upstream));
  if (kind == "guard") return memory::make_guard_allocator(std::move(upstream));
  if (kind == "nan") return memory::make_nan_allocator(std::move(upstream));
  if (kind == "pattern") return memory::make_pattern_allocator(std::move(upstream));
  if (kind == "recording") return memory::make_recording_allocator(std::move(upstream));
  throw Error(ErrorCode::invalid_argument, "there is no allocator \"" + std::string(kind) +
                                               "\"; the allocators are plain, arena, guard, nan, pattern and recording, joined by \"+\"");
}

}  // namespace treadle
