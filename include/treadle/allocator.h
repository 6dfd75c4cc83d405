// Where tensors' memory comes from, and who is charged for it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/export.h"

namespace treadle {

/// What memory is for.
enum class MemoryClass : uint8_t {
  weights,      ///< constants as the model has them, or as the optimiser folded them
  packed,       ///< copies of weights in the order that a kernel reads them
  activations,  ///< values while a run computes them, in the arena or apart from it
  scratch,      ///< working memory of kernels
  io,           ///< outputs, until they are handed over
  other,
  parameters,       ///< of a trainer or joint module: what steps change, running statistics too
  gradients,        ///< what the backward part computes, and sums of it
  optimizer_state,  ///< what an optimizer keeps for parameters
};
inline constexpr size_t kNumMemoryClasses = 9;
TREADLE_API std::string_view memory_class_name(MemoryClass memory_class) noexcept;

/// A region of an allocator's memory.
struct MemoryRegion {
  const void* data = nullptr;
  size_t size_bytes = 0;
  bool used = false;
  MemoryClass memory_class = MemoryClass::other;  ///< of a used one
};

/// A source of memory. Thread-safe.
class TREADLE_API Allocator {
 public:
  virtual ~Allocator();
  virtual std::string_view name() const noexcept = 0;
  /// @param size_bytes  at least 1. @return memory aligned to Storage::kAlignment; null if there is none.
  virtual void* allocate(size_t size_bytes, MemoryClass memory_class) = 0;
  /// Takes the size and class of the allocation.
  virtual void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept = 0;
  /// Called when the content of a block will not be read any more, but the block stays in use.
  virtual void renew(void* data, size_t size_bytes) noexcept;
  /// Gives idle memory back to the system. @return bytes.
  virtual size_t trim() noexcept;
  /// Calls `visit` for every region; it must not use the allocator.
  virtual void visit_regions(const std::function<void(const MemoryRegion&)>& visit) const;
  /// @throws Error(internal) describing what was written outside of a block or after its end, once. Sessions ask after every run.
  virtual void check();
};

/// The system's, of the whole process.
TREADLE_API const std::shared_ptr<Allocator>& plain_allocator();

/// An allocator of a kind, or several around one another: "nan+guard" fills what "guard" gives.
///   plain      the system's
///   arena      best fit in large blocks, neighbours coalesced; blocks that are idle go back to the system
///   guard      red zones around blocks, checked when they are freed; freed blocks are kept for a while to see who writes to them
///   nan        fills new memory with NaN
///   pattern    fills new and freed memory with large numbers in every dtype, different ones each time
///   recording  a RecordingAllocator
/// @param upstream  source of the last one's memory; null: the system.
/// @throws Error(invalid_argument) for another name.
TREADLE_API std::shared_ptr<Allocator> make_allocator(std::string_view kinds, std::shared_ptr<Allocator> upstream = nullptr);

/// What happened to an allocator's blocks, in order.
class TREADLE_API RecordingAllocator : public Allocator {
 public:
  struct Event {
    int64_t time_ns = 0;  ///< since the allocator was made
    const void* data = nullptr;
    size_t size_bytes = 0;
    MemoryClass memory_class = MemoryClass::other;
    bool freed = false;
  };
  virtual std::vector<Event> events() const = 0;
  virtual void clear() = 0;
};

/// Bytes of one class, or of all.
struct MemoryUsage {
  size_t bytes = 0, peak_bytes = 0;
  int64_t num_allocations = 0;  ///< since the account was made
};

struct MemoryStatistics {
  std::array<MemoryUsage, kNumMemoryClasses> classes;
  MemoryUsage total;
  size_t limit_bytes = 0;  ///< 0: none
  const MemoryUsage& operator[](MemoryClass memory_class) const { return classes[static_cast<size_t>(memory_class)]; }
};

/// The functions of a CallbackAllocator. Several threads may call them at once, also after the session has gone, as long as a tensor of
/// their memory lives.
struct AllocatorCallbacks {
  std::string name;
  /// @return memory for `size_bytes` (at least 1) at a multiple of Storage::kAlignment (64); null if there is none.
  std::function<void*(size_t size_bytes, MemoryClass memory_class)> allocate;
  std::function<void(void* data, size_t size_bytes, MemoryClass memory_class)> free;  ///< must not throw
  std::function<size_t()> trim;  ///< may be empty: gives idle memory back, @return bytes
};

/// A caller's own allocator, which counts what goes through it.
class TREADLE_API CallbackAllocator final : public Allocator {
 public:
  /// @throws Error(invalid_argument) if allocate or free is empty.
  explicit CallbackAllocator(AllocatorCallbacks callbacks);
  ~CallbackAllocator() override;
  std::string_view name() const noexcept override;
  /// @throws Error(invalid_argument) if the caller's memory is not aligned; it is freed.
  void* allocate(size_t size_bytes, MemoryClass memory_class) override;
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override;
  size_t trim() noexcept override;
  MemoryStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Constants and packed weights that models and sessions of this process hold in common, each counted once (docs/memory.md). Hits: how
/// often one was found in place of a copy, since the process began.
struct SharedWeightsStatistics {
  size_t num_constants = 0, constant_bytes = 0;
  size_t num_packed = 0, packed_bytes = 0;
  int64_t hits = 0, misses = 0;
};
TREADLE_API SharedWeightsStatistics shared_weights_statistics();

/// Counts bytes, up to a limit. Accounts form trees: a charge also goes to the parent, and every limit on the way counts. Thread-safe.
class TREADLE_API MemoryAccount {
 public:
  explicit MemoryAccount(std::string name, size_t limit_bytes = 0, std::shared_ptr<MemoryAccount> parent = nullptr);
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  /// False, and nothing is charged, if a limit would be passed.
  bool try_charge(MemoryClass memory_class, size_t size_bytes) noexcept;
  /// @throws Error(resource_exhausted) naming the account whose limit would be passed, the bytes wanted, and those in use.
  void charge(MemoryClass memory_class, size_t size_bytes);
  void discharge(MemoryClass memory_class, size_t size_bytes) noexcept;
  /// Charged whatever the limits say: for a run under way whose limit has become a lower one.
  void charge_beyond_limits(MemoryClass memory_class, size_t size_bytes) noexcept;

  const std::string& name() const noexcept { return name_; }
  const std::shared_ptr<MemoryAccount>& parent() const noexcept { return parent_; }
  size_t limit_bytes() const noexcept { return limit_.load(std::memory_order_relaxed); }
  /// 0: none. Memory in use stays.
  void set_limit(size_t limit_bytes) noexcept { limit_.store(limit_bytes, std::memory_order_relaxed); }
  size_t bytes() const noexcept { return total_.bytes.load(std::memory_order_relaxed); }
  MemoryStatistics statistics() const;
  void reset_peaks() noexcept;

 private:
  struct Counter {
    std::atomic<size_t> bytes{0}, peak{0};
    std::atomic<int64_t> allocations{0};
    void add(size_t size_bytes) noexcept;
    void count(size_t now) noexcept;
    MemoryUsage read() const;
  };
  bool take(size_t size_bytes) noexcept;  // from this account's total

  const std::string name_;
  const std::shared_ptr<MemoryAccount> parent_;
  std::atomic<size_t> limit_;
  Counter total_;
  std::array<Counter, kNumMemoryClasses> classes_;
};

}  // namespace treadle
