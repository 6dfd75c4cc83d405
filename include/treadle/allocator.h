// Allocators of tensors' memory, and accounts that count memory and limit it.
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

/// The purpose of a block of memory.
enum class MemoryClass : uint8_t {
  weights,      ///< constants, as in the model or folded by the optimizer
  packed,       ///< copies of weights in the layout of a kernel
  activations,  ///< values that a run computes, inside or outside the arena
  scratch,      ///< working memory of kernels
  io,           ///< outputs of a run, until the caller receives them
  other,
  parameters,       ///< trained parameters and running statistics of a trainer or joint module
  gradients,        ///< gradients that the backward pass computes, and their sums over steps
  optimizer_state,  ///< state that an optimizer keeps for parameters
};
inline constexpr size_t kNumMemoryClasses = 9;
TREADLE_API std::string_view memory_class_name(MemoryClass memory_class) noexcept;

/// A used or free region of an allocator's memory.
struct MemoryRegion {
  const void* data = nullptr;
  size_t size_bytes = 0;
  bool used = false;
  MemoryClass memory_class = MemoryClass::other;  ///< set only if the region is used
};

/// A source of memory. Thread-safe.
class TREADLE_API Allocator {
 public:
  virtual ~Allocator();
  virtual std::string_view name() const noexcept = 0;
  /// Allocates memory. @param size_bytes  at least 1. @return memory aligned to Storage::kAlignment; null if no memory is available
  virtual void* allocate(size_t size_bytes, MemoryClass memory_class) = 0;
  /// Frees a block. @param size_bytes, memory_class  the values that were passed to allocate() for it
  virtual void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept = 0;
  /// Called when the content of a block will not be read any more, but the block stays in use.
  virtual void renew(void* data, size_t size_bytes) noexcept;
  /// Returns idle memory to the system. @return bytes returned
  virtual size_t trim() noexcept;
  /// Calls `visit` for every region. `visit` must not use the allocator.
  virtual void visit_regions(const std::function<void(const MemoryRegion&)>& visit) const;
  /// Checks for writes outside blocks, and for writes to freed blocks. @throws Error(internal) that describes them; each is reported once.
  /// Sessions call this function after every run.
  virtual void check();
};

/// Returns the process-wide allocator, which takes memory from the system's heap.
TREADLE_API const std::shared_ptr<Allocator>& plain_allocator();

/// Makes an allocator of the named kind. Kinds joined by "+" wrap one another: "nan+guard" fills the memory that "guard" allocates. Kinds:
///   plain      the system's heap
///   arena      best fit in large blocks, with neighbors coalesced; idle blocks are returned to the system
///   guard      red zones around blocks, checked when they are freed; freed blocks are kept for a while to detect writes to them
///   nan        fills new memory with NaN
///   pattern    fills new and freed memory with large numbers in every dtype, different ones each time
///   recording  a RecordingAllocator
/// @param upstream  allocator from which the innermost one takes its memory; null: the system
/// @throws Error(invalid_argument) for another name
TREADLE_API std::shared_ptr<Allocator> make_allocator(std::string_view kinds, std::shared_ptr<Allocator> upstream = nullptr);

/// Wraps an allocator and records its allocations and frees, in order.
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

/// Counts the memory in use, of one class or in total.
struct MemoryUsage {
  size_t bytes = 0, peak_bytes = 0;
  int64_t num_allocations = 0;  ///< number since counting began
};

struct MemoryStatistics {
  std::array<MemoryUsage, kNumMemoryClasses> classes;
  MemoryUsage total;
  size_t limit_bytes = 0;  ///< limit in bytes; 0: no limit
  const MemoryUsage& operator[](MemoryClass memory_class) const { return classes[static_cast<size_t>(memory_class)]; }
};

/// The functions of a CallbackAllocator. Several threads may call them at once. They are also called after the session is destroyed, as
/// long as tensors use memory from them.
struct AllocatorCallbacks {
  std::string name;
  /// Allocates memory. @return memory of `size_bytes` (at least 1), aligned to Storage::kAlignment (64); null if there is none
  std::function<void*(size_t size_bytes, MemoryClass memory_class)> allocate;
  std::function<void(void* data, size_t size_bytes, MemoryClass memory_class)> free;  ///< must not throw
  std::function<size_t()> trim;  ///< gives idle memory back to the system, and returns its size in bytes; may be empty
};

/// A caller's own allocator, with statistics.
class TREADLE_API CallbackAllocator final : public Allocator {
 public:
  /// @throws Error(invalid_argument) if allocate or free is empty
  explicit CallbackAllocator(AllocatorCallbacks callbacks);
  ~CallbackAllocator() override;
  std::string_view name() const noexcept override;
  /// @throws Error(invalid_argument) if the callback returned unaligned memory, which is freed first
  void* allocate(size_t size_bytes, MemoryClass memory_class) override;
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override;
  size_t trim() noexcept override;
  MemoryStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Statistics of the constants and packed weights that models and sessions of this process share; each is counted once (docs/memory.md).
/// `hits` counts how often an existing copy was used instead of a new one, since the process began.
struct SharedWeightsStatistics {
  size_t num_constants = 0, constant_bytes = 0;
  size_t num_packed = 0, packed_bytes = 0;
  int64_t hits = 0, misses = 0;
};
TREADLE_API SharedWeightsStatistics shared_weights_statistics();

/// Counts bytes, up to a limit. Accounts form trees: a charge also counts in all ancestors, and must fit their limits. Thread-safe.
class TREADLE_API MemoryAccount {
 public:
  explicit MemoryAccount(std::string name, size_t limit_bytes = 0, std::shared_ptr<MemoryAccount> parent = nullptr);
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  /// Returns false and charges nothing if a limit would be exceeded.
  bool try_charge(MemoryClass memory_class, size_t size_bytes) noexcept;
  /// Charges the account. @throws Error(resource_exhausted) naming the account whose limit is exceeded, and the bytes requested and in use
  void charge(MemoryClass memory_class, size_t size_bytes);
  void discharge(MemoryClass memory_class, size_t size_bytes) noexcept;
  /// Charges even beyond the limits, for runs that began before a limit was lowered.
  void charge_beyond_limits(MemoryClass memory_class, size_t size_bytes) noexcept;

  const std::string& name() const noexcept { return name_; }
  const std::shared_ptr<MemoryAccount>& parent() const noexcept { return parent_; }
  size_t limit_bytes() const noexcept { return limit_.load(std::memory_order_relaxed); }
  /// Sets the limit; 0 removes it. A lower limit frees no memory that is in use.
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
  bool take(size_t size_bytes) noexcept;  // charges this account but not its parents; false: its limit would be exceeded

  const std::string name_;
  const std::shared_ptr<MemoryAccount> parent_;
  std::atomic<size_t> limit_;
  Counter total_;
  std::array<Counter, kNumMemoryClasses> classes_;
};

}  // namespace treadle
