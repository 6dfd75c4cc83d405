// Random arrays and the comparison that kernel tests share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace treadle::test {

class Random {
 public:
  explicit Random(uint32_t seed = 1) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool coin() { return integer(0, 1) == 1; }
  template <typename T = float>
  std::vector<T> vector(int64_t n, double low = -1, double high = 1) {
    std::vector<T> values(static_cast<size_t>(n));
    for (T& v : values) v = static_cast<T>(std::uniform_real_distribution<double>(low, high)(engine_));
    return values;
  }
  template <typename T>
  std::vector<T> integers(int64_t n, int64_t low, int64_t high) {
    std::vector<T> values(static_cast<size_t>(n));
    for (T& v : values) v = static_cast<T>(integer(low, high));
    return values;
  }

 private:
  std::mt19937 engine_;
};

/// Checks that |a - b| <= tolerance * max(1, |b|) for every element. NaN equals NaN, and infinities equal themselves.
template <typename A, typename B>
void expect_near(const A& actual, const B& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), e = static_cast<double>(expected[i]);
    if (std::isnan(e) || std::isinf(e)) {
      ASSERT_TRUE((std::isnan(a) && std::isnan(e)) || a == e) << "at " << i << ": " << a << " instead of " << e;
    } else {
      ASSERT_NEAR(a, e, tolerance * std::max(1.0, std::abs(e))) << "at " << i;
    }
  }
}

}  // namespace treadle::test
