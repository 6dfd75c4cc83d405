// Reports to a trainer with loss scaling whether a gradient of the step overflowed.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

namespace treadle {

/// Written by nodes of a trainer's step, which then fails, and read by the trainer. Thread-safe.
class OverflowReport {
 public:
  OverflowReport();
  ~OverflowReport();
  OverflowReport(const OverflowReport&) = delete;
  OverflowReport& operator=(const OverflowReport&) = delete;

  /// The number by which nodes find this object, since attributes are numbers and text. find() @throws Error(invalid_argument) if the
  /// object has been destroyed
  int64_t id() const { return id_; }
  static OverflowReport& find(int64_t id);

  void begin_step();
  /// @param loss  the loss before scaling
  void set(float loss);
  /// The step's loss, if a gradient has overflowed.
  std::optional<float> loss() const;

 private:
  const int64_t id_;
  mutable std::mutex mutex_;
  std::optional<float> loss_;
};

}  // namespace treadle
