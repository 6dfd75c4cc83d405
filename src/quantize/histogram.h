// Determines the range of a value's elements over calibration samples.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "treadle/quantize.h"

namespace treadle::quantization {

struct Range {
  double low = 0, high = 0;
};

/// Counts numbers in bins of equal width over [-limit, limit]. When a number exceeds the limit, the limit is doubled, and neighboring bins
/// are merged. So one pass over the samples suffices, and samples need not be kept.
class Histogram {
 public:
  static constexpr int kBinsPerSide = 4096;

  explicit Histogram(bool bins) : counts_(bins ? 2 * kBinsPerSide : 0) {}

  /// Counts numbers. @return false if one of them is not finite; then none is counted.
  bool add(const float* values, int64_t n);
  int64_t count() const { return count_; }
  Range range(CalibrationMethod method, double percentile) const;
  void merge(const Histogram& other);

 private:
  void widen();
  double edge(size_t bin) const { return (static_cast<double>(bin) / kBinsPerSide - 1) * limit_; }
  Range percentile_range(double percentile) const;
  Range entropy_range() const;

  std::vector<int64_t> counts_;
  double limit_ = 0;
  int64_t count_ = 0, zeros_ = 0;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
};

}  // namespace treadle::quantization
