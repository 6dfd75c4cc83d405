// Statistics of repeated measurements that assume nothing about the distribution of the values.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace treadle::profile {

struct Summary {
  double median = 0, p10 = 0, p90 = 0, min = 0, max = 0;
  /// The confidence interval of the median; nullopt if there are too few values for the confidence level.
  std::optional<std::pair<double, double>> interval;
};

/// Returns the median, quantiles and extremes of the values. @param values  at least one
Summary summarize(std::vector<double> values, double confidence = 0.99);

/// Computes a confidence interval of the median: from the k-th smallest to the k-th largest value. @param sorted  in ascending order
std::optional<std::pair<double, double>> median_interval(std::span<const double> sorted, double confidence);

/// Returns the indices of the values between the quartiles. Means over these ignore disturbed runs. Empty only if `values` is empty.
std::vector<size_t> middle_half(std::span<const double> values);

}  // namespace treadle::profile
