// A simulated accelerator for tests: host memory, one thread per stream, random delays, and checks of every declared access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/devices/device.h"
#include "device/sim/access_checker.h"

namespace treadle {

struct SimOptions {
  std::string name = "sim";
  uint64_t seed = 0;                      ///< seed of the random delays
  int max_delay_us = 0;                   ///< maximum delay before each piece of work, uniform from 0; 0: no delays
  size_t memory_bytes = size_t{1} << 30;  ///< an allocation beyond this total throws Error(resource_exhausted)
  double bus_bytes_per_second = 0;        ///< speed of moves to and from host memory, and of access to it; 0: they take no time
  bool shared_engine = false;  ///< true: the streams compute one piece of work at a time, in order of requests; copies may overlap
  /// Shared engine: work takes this multiple of the shortest time in which the host has computed work of the same name in its stream. With
  /// a large factor, times are those of the model, since an accelerator does not depend on the host's caches.
  double engine_pace = 1;
  bool host_accessible = false;  ///< true: represents the host, so its work is asynchronous and checked like a device's
  /// The checker, which devices with common events must share; null: the device makes one.
  std::shared_ptr<AccessChecker> checker;
};

/// Fills new and freed memory with different patterns, to reveal its use. Host code must access the memory by copies only, and declare
/// other accesses by check_host_access().
class SimDevice : public Device {
 public:
  static std::shared_ptr<SimDevice> create(const SimOptions& options = {});

  static constexpr uint8_t kNewMemory = 0xA5, kFreedMemory = 0xDD;

  /// Returns the process's device with this name, created by the first call with these options and shared while any object refers to it.
  /// All these devices share one checker, so that a program may use several of them.
  static std::shared_ptr<SimDevice> shared(const std::string& name, const SimOptions& options = {});

  virtual size_t allocated_bytes() const = 0;
  /// Returns the total time that non-yielding work has waited for the shared engine; 0 if there is none.
  virtual uint64_t engine_wait_ns() const = 0;
  virtual size_t peak_bytes() const = 0;  ///< returns the maximum of bytes allocated at the same time
  virtual const std::shared_ptr<AccessChecker>& checker() const = 0;
  /// Checks an access by the host. @throws Error(internal) on a race with a stream's work that the host has not waited for
  virtual void check_host_access(const void* data, size_t size_bytes, Access access, std::string_view name) = 0;
  /// Blocks the work of `stream`, which must be of this device, until resume(). Produces interleavings that random delays rarely produce.
  virtual void pause(Stream& stream) = 0;
  virtual void resume(Stream& stream) = 0;

 protected:
  explicit SimDevice(std::string name) : Device(std::move(name)) {}
};

}  // namespace treadle
