// Keeps parameters and states on the device that updates them, instead of copying them to the host after every step.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "session/executable.h"
#include "treadle/datum.h"

namespace treadle::train {

/// Values that a step writes stay on the device, where the next step reads them. They are copied to the host only when the host reads them.
/// A step writes new values to separate memory, so that a failed or abandoned step leaves the old values intact.
class StayingValues {
 public:
  /// @param bound  for each output of the step, the host memory of the value that the output updates; undefined: it updates none.
  StayingValues(const Executable& step, std::span<const Datum> bound);

  /// Must be called when a step begins: replaces feeds in host memory by newer values on devices. @param feeds  one per input of the step.
  /// @return for each output, whether it may stay on the device.
  std::vector<exec::OutputMemory> begin(std::span<Datum> feeds);
  /// Must be called when a step has succeeded: keeps its outputs for the next step.
  void take(std::span<const Datum> outputs);

  /// Copies all values to the host, if the devices have newer values than the host. Thread-safe.
  void bring_to_host();
  /// Like bring_to_host(), but also discards the values on the devices. The caller is about to change the host's values, and the next step
  /// must read those.
  void leave();

 private:
  struct Value {
    size_t input, output;  // indices among the step's inputs and outputs; `input` is kNone for a value that is written but not read
    Tensor on_host, on_device;
  };
  static constexpr size_t kNone = SIZE_MAX;

  std::mutex mutex_;
  std::vector<Value> values_;
  bool is_ahead_ = false;  // devices have newer values than the host
};

}  // namespace treadle::train
