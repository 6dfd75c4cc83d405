// A simulated accelerator for tests: host memory, one thread a stream, random delays, and a check of every declared access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"
#include "device/sim/access_checker.h"

namespace treadle {

struct SimOptions {
  std::string name = "sim";
  uint64_t seed = 0;                      ///< of the delays
  int max_delay_us = 0;                   ///< before every piece of work, uniform from 0; 0: none
  size_t memory_bytes = size_t{1} << 30;  ///< more allocated at once is Error(resource_exhausted)
  double bus_bytes_per_second = 0;        ///< of moves to and from the host's memory, and of access to it; 0: they take no time
  bool shared_engine = false;  ///< true: one piece of work at a time computes, of whatever stream, in the order of asking; copies do not
  /// Of the shared engine: work takes so many times the shortest time in which the host has computed the work of that name in its stream.
  /// Far above 1, its time is the model's, as an accelerator's does not depend on the host's caches.
  double engine_pace = 1;
  bool host_accessible = false;  ///< true: stands for the host, so that its work is asynchronous and checked like a device's
  /// Shared by devices whose events are to count for each other; null: an own one.
  std::shared_ptr<AccessChecker> checker;
};

/// New memory is filled with a pattern, and freed memory with another, so that its use shows. Host code must reach it by copies only;
/// it says what it touches besides by check_host_access.
class SimDevice : public Device {
 public:
  static std::shared_ptr<SimDevice> create(const SimOptions& options = {});

  static constexpr uint8_t kNewMemory = 0xA5, kFreedMemory = 0xDD;

  /// The process's device of that name, made at the first call with these options and kept while anybody holds it: jobs share it. All such
  /// devices have one checker, so that programs may run over several.
  static std::shared_ptr<SimDevice> shared(const std::string& name, const SimOptions& options = {});

  virtual size_t allocated_bytes() const = 0;
  /// That work which does not give way has waited for the engine that all streams share; 0 if they share none.
  virtual uint64_t engine_wait_ns() const = 0;
  virtual size_t peak_bytes() const = 0;  ///< the most that were allocated at once
  virtual const std::shared_ptr<AccessChecker>& checker() const = 0;
  /// @throws Error(internal) on a race with a stream's work that the host has not waited for.
  virtual void check_host_access(const void* data, size_t size_bytes, Access access, std::string_view name) = 0;
  /// Work of `stream`, which must be of this device, is held back until resume(): makes an interleaving that delays only might give.
  virtual void pause(Stream& stream) = 0;
  virtual void resume(Stream& stream) = 0;

 protected:
  explicit SimDevice(std::string name) : Device(DeviceKind::sim, std::move(name)) {}
};

}  // namespace treadle
