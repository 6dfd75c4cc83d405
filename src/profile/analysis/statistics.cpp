#include "profile/analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace treadle::profile {

std::optional<std::pair<double, double>> median_interval(std::span<const double> sorted, double confidence) {
  const size_t n = sorted.size();
  // Each value is below the true median with probability 1/2. `tail` is the probability that at most k of the n values are below it, so
  // that the median is below sorted[k]. With the same probability, it is above sorted[n - 1 - k].
  std::optional<std::pair<double, double>> interval;
  double tail = 0;
  for (size_t k = 0; 2 * (k + 1) <= n; ++k) {
    const auto count = static_cast<double>(n), below = static_cast<double>(k);
    tail += std::exp(std::lgamma(count + 1) - std::lgamma(below + 1) - std::lgamma(count - below + 1) - count * std::log(2.0));
    if (2 * tail > 1 - confidence) break;
    interval = {sorted[k], sorted[n - 1 - k]};
  }
  return interval;
}

Summary summarize(std::vector<double> values, double confidence) {
  std::sort(values.begin(), values.end());
  auto at = [&](double part) {
    const double place = part * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {.median = at(0.5),
          .p10 = at(0.1),
          .p90 = at(0.9),
          .min = values.front(),
          .max = values.back(),
          .interval = median_interval(values, confidence)};
}

std::vector<size_t> middle_half(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  const size_t cut = order.size() / 4;
  return {order.begin() + static_cast<int64_t>(cut), order.end() - static_cast<int64_t>(cut)};
}

}  // namespace treadle::profile
