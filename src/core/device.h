// Devices: memory, streams of work, and events that order streams. `cpu` runs everything at once on the calling thread; others later.
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
  /// Takes the time that so many bytes take over the bus to the host, in the order of the stream's work; moves none. On devices with
  /// Device::has_bus().
  virtual void transfer(size_t size_bytes) { (void)size_bytes; }
  /// Later work of this stream waits for the last record of `event`, of whatever device.
  /// @throws Error(invalid_argument) if it was never recorded, on devices that can tell.
  virtual void wait(const std::shared_ptr<Event>& event) = 0;
  /// Work that is enqueued from now on gives way to that of the device's other streams: it waits for theirs, and on devices that can,
  /// theirs takes its place in the middle. Null: it does not.
  /// @param check  is called now and then while it waits; what it throws ends the work.
  virtual void set_gives_way(std::function<void()> check) { (void)check; }
  /// The host waits for all work. Throws the first error of the work since the last call; work after an error was skipped.
  virtual void synchronize() = 0;

  /// Says what the work that is enqueued next will touch. Devices that check for races do it here, at issue, so that a missing event is
  /// found whatever the timing. @throws Error(internal) naming both accesses.
  virtual void check_access(const void* data, size_t size_bytes, Access access, std::string_view name) {
    (void)data, (void)size_bytes, (void)access, (void)name;
  }
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
  /// True if the device reaches the host's memory over a bus, so that what does not fit its own can stay there under the same address.
  /// Then allocate_anywhere() gives addresses, and reserve() room in the device's own memory.
  virtual bool has_bus() const noexcept { return false; }
  virtual std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) { return allocate(size_bytes); }
  /// False if there is no room for so many bytes.
  virtual bool reserve(size_t size_bytes) { return (void)size_bytes, true; }
  virtual void unreserve(size_t size_bytes) { (void)size_bytes; }
  /// What is there is not needed until it is written again: of memory that allocate_anywhere() gave, the host's may go back to the system.
  virtual void discard(void* data, size_t size_bytes) { (void)data, (void)size_bytes; }
  /// Memory that is not the device's own but that work of its streams touches: devices that check accesses check those to it, too, as long
  /// as the handle lives. Null from devices that do not.
  virtual std::shared_ptr<const void> watch(const void* data, size_t size_bytes) {
    (void)data, (void)size_bytes;
    return nullptr;
  }
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
