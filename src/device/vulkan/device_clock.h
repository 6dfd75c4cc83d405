// Converts a device's time stamps to times of the host's clock.
#pragma once

#include <cstdint>
#include <mutex>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// Compares the clock of a device with the host's clock. Thread-safe. Reads the clocks for the first time when the first stamp is
/// converted.
class DeviceClock {
 public:
  enum class Comparison : uint8_t {
    calibrated,  ///< the driver reads both clocks at the same moment (VK_EXT_calibrated_timestamps)
    marked,      ///< the host reads its clock before and after the device stamps an empty submission
  };

  /// Uses the more exact of both ways that the device supports. @param connection  must outlive the clock
  explicit DeviceClock(const Connection& connection);
  DeviceClock(const Connection& connection, Comparison by) : connection_(connection), by_(by) {}

  /// Returns false if the device has no time stamps.
  bool exists() const { return connection_.time_stamps().bits > 0; }
  /// Converts a time stamp to a time of the host's steady clock, in ns. Compares the clocks again if the last comparison is old.
  /// @pre exists()
  int64_t steady_ns(uint64_t ticks);
  /// Returns a bound of the last comparison's error: half of the time that it took.
  int64_t error_ns() const;

 private:
  /// Readings of both clocks at the same moment.
  struct Pair {
    uint64_t ticks = 0;
    int64_t steady_ns = 0, error_ns = INT64_MAX;
  };
  Pair compare() const;
  Pair read_calibrated() const;
  Pair read_marked() const;

  const Connection& connection_;
  const Comparison by_;
  mutable std::mutex mutex_;
  Pair last_;
};

}  // namespace treadle::vulkan
