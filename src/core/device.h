// Devices: memory, streams of work, and events that order streams. `cpu` runs everything at once on the calling thread; others later. What
// only some devices can do stands in interfaces of its own, which a device gives out or not: Bus, SharedEngine, AccessChecks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "treadle/tensor.h"

namespace treadle {

enum class DeviceKind : uint8_t { cpu, sim, plugin };
enum class CopyKind : uint8_t { host_to_device, device_to_host, device_to_device };
enum class Access : uint8_t { read, write };

class Device;

/// A point in a stream's work. Made by Device::create_event; may be recorded again, waits mean the record before them.
class Event {
 public:
  virtual ~Event() = default;
  /// True if the work before the last record is done, or if there was no record.
  virtual bool complete() const = 0;
  /// The host waits until complete() is true. Does not report errors of the work; Stream::synchronize does.
  virtual void synchronize() const = 0;
};

/// Work in order. Streams of one device run beside each other unless events connect them. A stream may be used by one host thread at a
/// time. Its destructor waits for its work.
class Stream {
 public:
  using Work = std::function<void()>;

  virtual ~Stream() = default;
  virtual Device& device() const = 0;

  /// @param name  for error messages and traces.
  virtual void enqueue(Work work, std::string_view name) = 0;
  /// Work of the host when all before it is done: it lets go of what that has used.
  virtual void enqueue_release(Work work) { enqueue(std::move(work), "release"); }
  /// Both blocks must stay alive and, but for this copy, untouched until it is done.
  virtual void copy(void* dst, const void* src, size_t size_bytes, CopyKind kind) = 0;
  /// `event` completes when the work so far is done. @throws Error(invalid_argument) if it belongs to another kind of device.
  virtual void record(Event& event) = 0;
  /// Later work of this stream waits for the last record of `event`, of whatever device.
  /// @throws Error(invalid_argument) if it was never recorded, on devices that can tell.
  virtual void wait(const std::shared_ptr<Event>& event) = 0;
  /// The host waits for all work. Throws the first error of the work since the last call; work after an error was skipped.
  virtual void synchronize() = 0;
};

/// The way to the host's memory of a device that works on it under the device's own addresses: what does not fit its memory can stay there.
/// Addresses and room in the device's memory are then two things. Work and copies find contents in either memory.
class Bus {
 public:
  enum class Move : uint8_t {
    to_device,
    to_host,
    back_to_host,  ///< contents that have not changed since they came from there
  };

  virtual std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) = 0;  ///< addresses, without room
  /// Room in the device's own memory. False if there is none for so many bytes.
  virtual bool reserve(size_t size_bytes) = 0;
  virtual void unreserve(size_t size_bytes) noexcept = 0;
  /// What is there is not needed until it is written again: of memory that allocate_anywhere() gave, the host's may go back to the system.
  virtual void discard(void* data, size_t size_bytes) = 0;
  /// Moves contents to the other memory, under the addresses that they have and in the order of the stream's work: a prefetch. What has no
  /// contents yet is not moved. Memory that allocate_anywhere() gave; null for what the host's kernels have packed.
  virtual void move(Stream& stream, void* data, size_t size_bytes, Move where) = 0;
  /// The work that comes next uses so many bytes where they lie, in the host's memory. For devices on which that takes no time by itself.
  virtual void use_over_bus(Stream& /*stream*/, size_t /*size_bytes*/) {}

 protected:
  ~Bus() = default;
};

/// What computes for all streams of a device, one at a time.
class SharedEngine {
 public:
  /// Work that the stream gets from now on gives way to that of the device's other streams: it waits for theirs, which on devices that can
  /// takes its place in the middle. Null: it does not.
  /// @param check  is called now and then while it waits; what it throws ends the work.
  virtual void set_gives_way(Stream& stream, std::function<void()> check) = 0;

 protected:
  ~SharedEngine() = default;
};

/// Finds races: a device that has it compares the accesses that it is told of, whatever the timing.
class AccessChecks {
 public:
  /// What the work that the stream gets next will touch. @throws Error(internal) naming both accesses where an event is missing.
  virtual void check(Stream& stream, const void* data, size_t size_bytes, Access access, std::string_view name) = 0;
  /// Memory that is not the device's own but that work of its streams touches: accesses to it are checked, too, as long as the handle
  /// lives. Null for what is known already.
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
  DeviceKind kind() const noexcept { return kind_; }

  /// A Storage::of_device(), aligned to Storage::kAlignment, not initialised. Freed with the last reference, which may outlive the caller's
  /// handle of the device.
  /// @throws Error(resource_exhausted)
  virtual std::shared_ptr<Storage> allocate(size_t size_bytes) = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string_view name) = 0;
  virtual std::shared_ptr<Event> create_event() = 0;
  /// What only some devices have; null from the others. They live as long as the device.
  virtual Bus* bus() noexcept { return nullptr; }
  virtual SharedEngine* shared_engine() noexcept { return nullptr; }
  virtual AccessChecks* access_checks() noexcept { return nullptr; }
  /// True if host code may read and write the device's memory.
  virtual bool host_accessible() const noexcept = 0;
  /// True if its memory is the host's in truth, as a simulated device's.
  virtual bool memory_is_hosts() const noexcept { return host_accessible(); }
  /// True if its streams copy to and from the other's memory, device to device.
  virtual bool reaches(const Device& other) const noexcept { return this == &other; }

 protected:
  Device(DeviceKind kind, std::string name) : name_(std::move(name)), kind_(kind) {}

 private:
  std::string name_;
  DeviceKind kind_;
};

}  // namespace treadle
