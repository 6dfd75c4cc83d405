// A device's clock, by which it stamps the times of its work, beside the host's.
#pragma once

#include <cstdint>
#include <mutex>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// Thread-safe. Reads no clock before the first conversion.
class DeviceClock {
 public:
  enum class Comparison : uint8_t {
    calibrated,  ///< the driver reads both clocks at one moment (VK_EXT_calibrated_timestamps)
    marked,      ///< the host reads its clock before and after the device stamps an empty submission
  };

  /// Compares the clocks in the better way that the device has. @param connection  must outlive the clock
  explicit DeviceClock(const Connection& connection);
  DeviceClock(const Connection& connection, Comparison by) : connection_(connection), by_(by) {}

  /// False if the device does not stamp times.
  bool exists() const { return connection_.time_stamps().bits > 0; }
  /// Returns a time stamp as a time of the host's steady clock. The clocks are compared again when the last comparison is old.
  /// @pre exists()
  int64_t steady_ns(uint64_t ticks);
  /// Bounds the error of the last comparison: half of the time that it took.
  int64_t error_ns() const;

 private:
  /// Both clocks at the same moment.
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
