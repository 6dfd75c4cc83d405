// Tells a trainer that scales its loss whether a gradient of the step has overflowed.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

namespace treadle {

/// Written by nodes of one trainer's step, which fails then, and read by the trainer. Thread-safe.
class OverflowReport {
 public:
  OverflowReport();
  ~OverflowReport();
  OverflowReport(const OverflowReport&) = delete;
  OverflowReport& operator=(const OverflowReport&) = delete;

  /// By which nodes, whose attributes are numbers and text, find it. @throws Error(invalid_argument) for one that is gone.
  int64_t id() const { return id_; }
  static OverflowReport& find(int64_t id);

  void begin_step();
  /// @param loss  of the step, unscaled.
  void set(float loss);
  /// The step's loss, if a gradient has overflowed.
  std::optional<float> loss() const;

 private:
  const int64_t id_;
  mutable std::mutex mutex_;
  std::optional<float> loss_;
};

}  // namespace treadle
