// A simulated accelerator for tests. It uses host memory and one thread per stream, delays work at random, and checks declared accesses.
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
  int max_delay_us = 0;                   ///< work is delayed by a random time from 0 to this
  size_t memory_bytes = size_t{1} << 30;  ///< an allocation beyond this total throws Error(resource_exhausted)
  double bus_bytes_per_second = 0;        ///< speed of moves between host and device, and of use over the bus; 0: no time
  bool shared_engine = false;             ///< true: streams share an engine, which runs one piece of work at a time; copies may overlap
  /// With a shared engine, work takes this multiple of the shortest time in which the host has computed work of that name in the stream. A
  /// large factor hides the effects of the host's caches, which an accelerator does not have.
  double engine_pace = 1;
  bool host_accessible = false;  ///< true: stands for the host, with asynchronous and checked work
  /// The checker. Devices that wait for each other's events must share one. Null: the device makes its own.
  std::shared_ptr<AccessChecker> checker;
};

/// Fills new memory and freed memory with different patterns, so that wrong uses show. Host code should access the memory only by copies;
/// it must declare all other accesses by check_host_access().
class SimDevice : public Device {
 public:
  static std::shared_ptr<SimDevice> create(const SimOptions& options = {});

  static constexpr uint8_t kNewMemory = 0xA5, kFreedMemory = 0xDD;

  /// Returns the process's device with this name. The first call creates it with these options; it exists while any object refers to it.
  /// All such devices share one checker, so that a program may use several of them together.
  static std::shared_ptr<SimDevice> shared(const std::string& name, const SimOptions& options = {});

  virtual size_t allocated_bytes() const = 0;
  /// Returns the total time that non-yielding work has waited for the shared engine; 0 if there is none.
  virtual uint64_t engine_wait_ns() const = 0;
  virtual size_t peak_bytes() const = 0;  ///< returns the maximum of bytes allocated at the same time
  virtual const std::shared_ptr<AccessChecker>& checker() const = 0;
  /// Checks an access by the host. @throws Error(internal) if it races with work of a stream for which the host has not waited
  virtual void check_host_access(const void* data, size_t size_bytes, Access access, std::string_view name) = 0;
  /// Stops the work of one of this device's streams until resume(). Tests use this for interleavings that random delays rarely produce.
  virtual void pause(Stream& stream) = 0;
  virtual void resume(Stream& stream) = 0;

 protected:
  explicit SimDevice(std::string name) : Device(std::move(name)) {}
};

}  // namespace treadle
