#include "quantize/histogram.h"

#include <algorithm>
#include <cmath>

namespace treadle::quantization {
namespace {

/// Returns the Kullback-Leibler divergence of two histograms, after dividing each by its sum.
double divergence(const std::vector<double>& p, const std::vector<double>& q) {
  double p_sum = 0, q_sum = 0, result = 0;
  for (size_t i = 0; i < p.size(); ++i) p_sum += p[i], q_sum += q[i];
  if (p_sum == 0 || q_sum == 0) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    // The bound 1e-9 keeps the logarithm finite where q is 0.
    result += p[i] / p_sum * std::log(p[i] / p_sum / std::max(q[i] / q_sum, 1e-9));
  }
  return result;
}

/// Returns the first `bins` bins of a histogram as quantization to `levels` codes sees them: all bins of a code get the same count, except
/// that bins which were empty stay empty.
std::vector<double> through_codes(const std::vector<double>& counts, size_t bins, size_t levels) {
  std::vector<double> result(bins);
  for (size_t level = 0; level < levels; ++level) {
    const size_t begin = level * bins / levels, end = (level + 1) * bins / levels;
    double sum = 0, filled = 0;
    for (size_t i = begin; i < end; ++i) sum += counts[i], filled += counts[i] > 0 ? 1 : 0;
    for (size_t i = begin; i < end; ++i)
      if (counts[i] > 0) result[i] = sum / filled;
  }
  return result;
}

}  // namespace

void Histogram::widen() {
  std::vector<int64_t> wider(counts_.size());
  for (size_t i = 0; i < counts_.size(); ++i) wider[kBinsPerSide / 2 + i / 2] += counts_[i];
  counts_ = std::move(wider);
  limit_ *= 2;
}

bool Histogram::add(const float* values, int64_t n) {
  float low = std::numeric_limits<float>::infinity(), high = -low;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) low = std::min(low, values[i]), high = std::max(high, values[i]), finite &= std::isfinite(values[i]);
  if (!finite) return false;
  if (n == 0) return true;
  low_ = std::min<double>(low_, low), high_ = std::max<double>(high_, high), count_ += n;
  if (counts_.empty()) return true;
  const double largest = std::max(std::fabs(low), std::fabs(high));
  if (limit_ == 0 && largest > 0) limit_ = std::exp2(std::ceil(std::log2(largest)));
  while (largest > limit_) widen();
  const double bins_per_unit = limit_ > 0 ? kBinsPerSide / limit_ : 0;
  for (int64_t i = 0; i < n; ++i) {
    zeros_ += values[i] == 0 ? 1 : 0;
    const auto bin = static_cast<int64_t>((double{values[i]} * bins_per_unit) + kBinsPerSide);
    ++counts_[static_cast<size_t>(std::clamp<int64_t>(bin, 0, 2 * kBinsPerSide - 1))];
  }
  return true;
}

void Histogram::merge(const Histogram& other) {
  low_ = std::min(low_, other.low_), high_ = std::max(high_, other.high_), count_ += other.count_, zeros_ += other.zeros_;
  if (counts_.empty()) return;
  Histogram added = other;
  if (limit_ == 0) limit_ = other.limit_;  // a histogram that contains only zeros fits any limit
  if (added.limit_ == 0) added.limit_ = limit_;
  while (limit_ < added.limit_) widen();
  while (added.limit_ < limit_) added.widen();
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += added.counts_[i];
}

Range Histogram::range(CalibrationMethod method, double percentile) const {
  if (count_ == 0) return {};
  if (method == CalibrationMethod::minmax || limit_ == 0) return {low_, high_};
  const Range r = method == CalibrationMethod::percentile ? percentile_range(percentile) : entropy_range();
  return {std::max(r.low, low_), std::min(r.high, high_)};
}

Range Histogram::percentile_range(double percentile) const {
  int64_t total = 0;
  for (int64_t count : counts_) total += count;
  const auto outside = static_cast<int64_t>(static_cast<double>(total) * (1 - percentile / 100));
  // Removes bins from that end of the range which has the larger magnitude. If all values have one sign, the end at zero stays.
  size_t begin = 0, end = counts_.size();
  int64_t left = outside;
  while (begin + 1 < end) {
    const bool from_low = std::fabs(edge(begin)) > std::fabs(edge(end));
    const int64_t count = from_low ? counts_[begin] : counts_[end - 1];
    if (count > left) break;
    left -= count;
    if (from_low)
      ++begin;
    else
      --end;
  }
  return {edge(begin), edge(end)};
}

// TensorRT's entropy calibration: tries ranges that omit large values, and chooses the range for which quantization changes the histogram
// least (KL divergence). Zeros do not count, because all ranges represent zero exactly. After a Relu there are so many zeros that their bin
// would dominate the divergence.
Range Histogram::entropy_range() const {
  std::vector<double> magnitudes(kBinsPerSide);
  for (size_t i = 0; i < magnitudes.size(); ++i)
    magnitudes[i] = static_cast<double>(counts_[kBinsPerSide + i] + counts_[kBinsPerSide - 1 - i]);
  magnitudes[0] -= static_cast<double>(zeros_);
  size_t filled = magnitudes.size();
  while (filled > 1 && magnitudes[filled - 1] == 0) --filled;
  // If all values have the same sign, all 256 codes are for magnitudes; otherwise half of them.
  const size_t levels = low_ >= 0 || high_ <= 0 ? 256 : 128;
  // With few values, most bins are empty and the divergence is meaningless. The range is then that of all values.
  constexpr int64_t kLeastPerCode = 32;
  if (count_ - zeros_ < kLeastPerCode * static_cast<int64_t>(levels)) return {low_, high_};
  constexpr size_t kCandidates = 100;
  size_t best = filled;
  double least = std::numeric_limits<double>::infinity();
  for (size_t step = 1; step <= kCandidates; ++step) {
    const size_t bins = std::max(levels, filled * step / kCandidates);
    if (bins > filled) break;
    std::vector<double> inside(magnitudes.begin(), magnitudes.begin() + static_cast<int64_t>(bins));
    const std::vector<double> coded = through_codes(inside, bins, levels);
    for (size_t i = bins; i < filled; ++i) inside.back() += magnitudes[i];  // values outside of the range get the last code
    if (const double d = divergence(inside, coded); d < least) least = d, best = bins;
  }
  const double limit = static_cast<double>(best) / kBinsPerSide * limit_;
  return {-limit, limit};
}

}  // namespace treadle::quantization
