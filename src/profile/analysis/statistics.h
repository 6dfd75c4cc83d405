// Statistics of repeated measurements, without assumptions about their distribution.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace treadle::profile {

struct Summary {
  double median = 0, p10 = 0, p90 = 0, min = 0, max = 0;
  /// The confidence interval of the median; nullopt if there are too few values.
  std::optional<std::pair<double, double>> interval;
};

/// Summarizes values. @param values  at least one
Summary summarize(std::vector<double> values, double confidence = 0.99);

/// Computes a confidence interval from order statistics: from the k-th smallest to the k-th largest value. @param sorted  ascending
std::optional<std::pair<double, double>> median_interval(std::span<const double> sorted, double confidence);

/// Returns the indices of the middle half of the values, so that means over them ignore disturbed runs. Not empty unless `values` is.
std::vector<size_t> middle_half(std::span<const double> values);

}  // namespace treadle::profile
