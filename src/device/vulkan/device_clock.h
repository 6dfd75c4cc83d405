// Converts a device's time stamps to times of the host's clock.
#pragma once

#include <cstdint>
#include <mutex>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// Compares the clock of a device with the host's clock, and converts times. Thread-safe. The clocks are first compared when the first
/// time stamp is converted.
class DeviceClock {
 public:
  enum class Comparison : uint8_t {
    calibrated,  ///< the driver reads both clocks at the same time (VK_EXT_calibrated_timestamps)
    marked,      ///< the host reads its clock before and after the device writes a time stamp
  };

  /// Compares the device's clock with the host's by the most exact method that the device supports. @param connection  must outlive this
  /// object
  explicit DeviceClock(const Connection& connection);
  DeviceClock(const Connection& connection, Comparison by) : connection_(connection), by_(by) {}

  /// Returns false if the device has no time stamps.
  bool exists() const { return connection_.time_stamps().bits > 0; }
  /// Converts a device's time stamp to a time of the host's steady clock, in ns. Compares the clocks again if the last comparison is old.
  /// @pre exists()
  int64_t steady_ns(uint64_t ticks);
  /// Returns a bound of the error of the last comparison: half of the time that this comparison took.
  int64_t error_ns() const;

 private:
  /// Readings of both clocks at the same time, and a bound of the error.
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
