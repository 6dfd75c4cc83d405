// Statistics of repeated measurements that assume nothing of their distribution.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace treadle::profile {

struct Summary {
  double median = 0, p10 = 0, p90 = 0, min = 0, max = 0;
  /// Where the median of all possible runs is, with the confidence asked for; none if there are too few.
  std::optional<std::pair<double, double>> interval;
};

/// Of at least one value.
Summary summarise(std::vector<double> values, double confidence = 0.99);

/// By order statistics: between the k-th smallest and the k-th largest value. @param sorted  ascending
std::optional<std::pair<double, double>> median_interval(std::span<const double> sorted, double confidence);

/// Indices of the middle half by value, so that means over them ignore runs that were disturbed. Never empty for values.
std::vector<size_t> middle_half(std::span<const double> values);

}  // namespace treadle::profile
