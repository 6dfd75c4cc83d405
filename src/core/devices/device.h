// Devices: memory, streams of work, and events that order streams. `cpu` runs work at once on the calling thread; other devices run it
// later. Optional abilities have separate interfaces: Bus, SharedEngine, AccessChecks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "treadle/tensor.h"

namespace treadle {

enum class CopyKind : uint8_t { host_to_device, device_to_host, device_to_device };
enum class Access : uint8_t { read, write };

/// A block of memory that enqueued work reads or writes.
struct MemoryUse {
  const void* data = nullptr;
  size_t size_bytes = 0;
  Access access = Access::read;
};

class Device;

/// A point in a stream's work, made by Device::create_event. It may be recorded repeatedly; a wait refers to the last record at that time.
class Event {
 public:
  virtual ~Event() = default;
  /// True if the work before the last record is done, or nothing was recorded.
  virtual bool complete() const = 0;
  /// Blocks the host until complete(). Does not report errors of the work; Stream::synchronize does.
  virtual void synchronize() const = 0;
};

/// Work that a stream has recorded, so that it can be repeated (Stream::end_recorded()). It must be destroyed before its stream.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
};

/// A queue of work. Streams of a device run concurrently unless events order them. One host thread at a time may use a stream. The
/// destructor waits for its work.
class Stream {
 public:
  using Work = std::function<void()>;

  virtual ~Stream() = default;
  virtual Device& device() const = 0;

  /// Enqueues work. @param name  for error messages and traces
  virtual void enqueue(Work work, std::string_view name) = 0;
  /// Enqueues host work that runs after all work enqueued so far, such as releasing memory which that work uses. synchronize() waits for
  /// it.
  virtual void enqueue_release(Work work) { enqueue(std::move(work), "release"); }
  /// Enqueues a copy. Both blocks must stay alive, and nothing else may use them, until the copy is done.
  virtual void copy(void* dst, const void* src, size_t size_bytes, CopyKind kind) = 0;
  /// Records an event, which completes when all work enqueued so far is done. @throws Error(invalid_argument) if the event belongs to
  /// another kind of device
  virtual void record(Event& event) = 0;
  /// Later work of this stream waits for the last record of `event`, which may belong to any device.
  /// @throws Error(invalid_argument) if nothing was recorded, on devices that can tell
  virtual void wait(const std::shared_ptr<Event>& event) = 0;
  /// Waits for all work. Throws the first error since the last call. Work after an error was skipped.
  virtual void synchronize() = 0;

  /// A function that is given the times at which the device began and ended a piece of work, in nanoseconds of the host's steady clock.
  using Told = std::function<void(int64_t begin_ns, int64_t end_ns)>;
  /// Measures the time of a piece of work: of everything enqueued between begin_timed() and end_timed(). If work itself calls these two
  /// functions, the piece is what it does between them. Pieces do not nest. `told` is called with the times once the piece is done, on any
  /// thread, at the latest by synchronize(); after an error it may never be called. @pre Device::tells_times()
  virtual void begin_timed() {}
  virtual void end_timed(Told /*told*/) {}

  /// Called by work before each of its parts. Until the next call, or the end of the work, it accesses only the declared memory, and memory
  /// that is never written after it was first filled. Devices use this to run parts at the same time that do not depend on each other.
  virtual void declare_uses(std::span<const MemoryUse> /*uses*/) {}

  /// Records everything that is enqueued from here on, in addition to doing it. @pre Device::records_work()
  virtual void begin_recorded() {}
  /// Returns the work since begin_recorded(), or null if it cannot be repeated as it is, for instance a copy from or to the host.
  virtual std::unique_ptr<RecordedWork> end_recorded() { return nullptr; }
  /// Enqueues recorded work of this stream again: the same kernels with the same arguments, for a fraction of the host's time.
  /// @return false if that is impossible now: nothing was enqueued, and the work has to be recorded again
  virtual bool submit_again(RecordedWork& /*work*/) { return false; }
};

/// Lets a device work on the host's memory, so that data may exceed the device's own memory. Memory from allocate_anywhere() has addresses
/// that stay the same when its contents move. Copies, and work that got its addresses from reach(), find the contents in either memory.
class Bus {
 public:
  enum class Move : uint8_t {
    to_device,
    to_host,
    back_to_host,  ///< contents unchanged since they came from the host
  };

  virtual std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) = 0;  ///< reserves addresses, but no memory
  /// True if addresses without contents take no memory: values then need not share addresses.
  virtual bool addresses_are_free() const noexcept { return false; }
  /// Reserves physical memory of the device for the contents of these addresses. Null `data` reserves memory without addresses, for weights
  /// that host kernels have packed. Returns false if not enough is free.
  virtual bool reserve(void* data, size_t size_bytes) = 0;
  virtual void unreserve(void* data, size_t size_bytes) noexcept = 0;
  /// Declares that contents are not needed. Host memory behind these addresses (from allocate_anywhere()) may be returned to the system.
  virtual void discard(void* data, size_t size_bytes) = 0;
  /// Declares that contents will never be needed again. Their addresses may have been freed already.
  virtual void forget(void* /*data*/, size_t /*size_bytes*/) noexcept {}
  /// Prefetches contents into the other memory (device or host), under the same addresses and in the stream's order. Memory without
  /// contents is not moved. Memory on the device from which contents move is unreserved when the move is done.
  /// @param data  from allocate_anywhere(); null: weights packed by host kernels. Before a move to the device, it has been reserved there
  virtual void move(Stream& stream, void* data, size_t size_bytes, Move where) = 0;
  /// From now on, when these contents move to the device, the host keeps a copy, so that Move::back_to_host copies nothing.
  virtual void keep_on_host(void* /*data*/, size_t /*size_bytes*/) {}
  /// Announces that the next work reads this many bytes of host memory. Devices that simulate the time of such reads need it.
  virtual void use_over_bus(Stream& /*stream*/, size_t /*size_bytes*/) {}
  /// Returns the address at which work enqueued now finds the contents, valid until they move or are declared unneeded. It is
  /// `data` itself if the device's and the host's memory share addresses, or if `data` is not from allocate_anywhere().
  /// @param size_bytes  size of the whole contents, as in the other calls. @throws Error(resource_exhausted)
  virtual void* reach(void* data, size_t /*size_bytes*/) { return data; }

 protected:
  ~Bus() = default;
};

/// The compute engine of a device, which all its streams share: it works for one stream at a time.
class SharedEngine {
 public:
  /// Gives the stream's later work a lower priority: it waits for the device's other streams and, on devices that support this, is
  /// preempted by them.
  /// @param check  called repeatedly during the wait; an exception ends the work. Null: restores the normal priority
  virtual void set_gives_way(Stream& stream, std::function<void()> check) = 0;

 protected:
  ~SharedEngine() = default;
};

/// Detects races by comparing the declared accesses of streams, independent of timing.
class AccessChecks {
 public:
  /// Declares an access of the stream's next work. @throws Error(internal) naming both accesses if no event orders them
  virtual void check(Stream& stream, const void* data, size_t size_bytes, Access access, std::string_view name) = 0;
  /// Also checks accesses to this memory outside the device, as long as the returned handle lives. Null: the memory is known already.
  virtual std::shared_ptr<const void> watch(const void* data, size_t size_bytes) = 0;

 protected:
  ~AccessChecks() = default;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const noexcept { return name_; }

  /// Allocates a Storage::of_device(), aligned to Storage::kAlignment and uninitialized. It is freed with its last reference, even if the
  /// caller no longer holds the device.
  /// @throws Error(resource_exhausted)
  virtual std::shared_ptr<Storage> allocate(size_t size_bytes) = 0;
  /// Allocates like allocate() or, if the device is full, in the host's memory if the device has a bus. Copies find the memory there.
  /// @throws Error(resource_exhausted)
  std::shared_ptr<Storage> allocate_somewhere(size_t size_bytes);
  virtual std::unique_ptr<Stream> create_stream(std::string_view name) = 0;
  virtual std::shared_ptr<Event> create_event() = 0;
  /// Optional abilities; null if the device lacks them. They live as long as the device.
  virtual Bus* bus() noexcept { return nullptr; }
  virtual SharedEngine* shared_engine() noexcept { return nullptr; }
  virtual AccessChecks* access_checks() noexcept { return nullptr; }
  /// Returns how many bytes of the device's memory this process has allocated; nullopt if the device does not count them.
  virtual std::optional<size_t> bytes_in_use() const { return std::nullopt; }
  /// True if host code may access the device's memory.
  virtual bool host_accessible() const noexcept = 0;
  /// True if the memory is actually the host's, as for simulated devices.
  virtual bool memory_is_hosts() const noexcept { return host_accessible(); }
  /// True if its streams report when the device did their work. Otherwise only the times at which the host enqueued the work are known.
  virtual bool tells_times() const noexcept { return false; }
  /// True if Stream::enqueue() calls the work before it returns; kernels then only enqueue commands for the device. What a kernel finds out
  /// on the host, such as the extents of its outputs, is known after enqueue(), even if the device has not executed the commands.
  virtual bool calls_work_at_once() const noexcept { return false; }
  /// True if its streams can repeat recorded work. Kernels are not called again, so they must depend on nothing but addresses and extents.
  virtual bool records_work() const noexcept { return false; }
  /// True if its streams can copy directly from and to the other device.
  virtual bool reaches(const Device& other) const noexcept { return this == &other; }

 protected:
  explicit Device(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};

}  // namespace treadle
