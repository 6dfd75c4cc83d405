// Reports to a trainer with loss scaling whether a gradient of the step overflowed.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

namespace treadle {

/// Nodes of a trainer's step write it and then make the step fail; the trainer reads it. Thread-safe.
class OverflowReport {
 public:
  OverflowReport();
  ~OverflowReport();
  OverflowReport(const OverflowReport&) = delete;
  OverflowReport& operator=(const OverflowReport&) = delete;

  /// Returns the number by which nodes find this object, since their attributes hold only numbers and text. find() throws
  /// Error(invalid_argument) if the object has been destroyed.
  int64_t id() const { return id_; }
  static OverflowReport& find(int64_t id);

  void begin_step();
  /// Reports an overflow. @param loss  the loss before scaling
  void set(float loss);
  /// Returns the step's loss before scaling if a gradient has overflowed; otherwise nullopt.
  std::optional<float> loss() const;

 private:
  const int64_t id_;
  mutable std::mutex mutex_;
  std::optional<float> loss_;
};

}  // namespace treadle
