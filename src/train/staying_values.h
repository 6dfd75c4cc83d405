// Parameters and states that a trainer's steps leave on the devices that update them.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "session/executable.h"
#include "treadle/datum.h"

namespace treadle::train {

/// What a step has updated is fed to the next one where it lies, and comes to the host when somebody looks. Two blocks a value take turns:
/// a step that fails, or is left behind, has changed nothing.
class StayingValues {
 public:
  /// @param bound  per output of the step: the host's memory of what it updates; undefined: nothing that is kept.
  StayingValues(const Executable& step, std::span<const Datum> bound);

  /// Of a step that begins: values on devices in place of the host's. @param feeds  per input of the step.
  /// @return one per output, where it may stay.
  std::vector<exec::OutputMemory> begin(std::span<Datum> feeds);
  /// Of a step that has ended well.
  void take(std::span<const Datum> outputs);

  /// Afterwards the host has everything as of the last step. Thread-safe.
  void bring_to_host();
  /// The same before the host's memory is written: the next step is fed from there.
  void leave();

 private:
  struct Value {
    size_t input, output;  // places in the step; of what it writes and does not read, `input` is kNone
    Tensor on_host, on_device;
    std::shared_ptr<Storage> spare;  // what the value before lay in
  };
  static constexpr size_t kNone = SIZE_MAX;

  std::mutex mutex_;
  std::vector<Value> values_;
  bool is_ahead_ = false;  // of the host
};

}  // namespace treadle::train
