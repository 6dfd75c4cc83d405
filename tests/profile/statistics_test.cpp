#include "profile/analysis/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace treadle::profile {
namespace {

std::vector<double> numbers_to(int n) {
  std::vector<double> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

// The expected ranks are those in the tables of the sign test.
TEST(Statistics, IntervalsOfTheMedianHaveTheRanksOfTheSignTest) {
  const std::vector<double> twenty = numbers_to(20), hundred = numbers_to(100);
  EXPECT_EQ(median_interval(twenty, 0.95), (std::pair{6.0, 15.0}));
  EXPECT_EQ(median_interval(twenty, 0.99), (std::pair{4.0, 17.0}));
  EXPECT_EQ(median_interval(hundred, 0.95), (std::pair{40.0, 61.0}));
}

TEST(Statistics, TooFewValuesHaveNoInterval) {
  EXPECT_FALSE(median_interval(numbers_to(7), 0.99));  // the best confidence of 7 numbers is 1 - 2 / 128, less than 0.99
  EXPECT_EQ(median_interval(numbers_to(8), 0.99), (std::pair{1.0, 8.0}));
  EXPECT_FALSE(median_interval({}, 0.5));
}

TEST(Statistics, IntervalsHoldTheMedianAsOftenAsTheySay) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> skewed(0, 1);  // a distribution with the median 1
  int held = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(25);
    for (double& value : values) value = skewed(random);
    std::sort(values.begin(), values.end());
    const auto interval = median_interval(values, 0.95);
    ASSERT_TRUE(interval);
    held += interval->first <= 1 && 1 <= interval->second;
  }
  EXPECT_GE(held, kTrials * 0.945);
}

TEST(Statistics, SummariesInterpolatePercentiles) {
  const Summary s = summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(s.median, 3);
  EXPECT_DOUBLE_EQ(s.p10, 1.4);
  EXPECT_DOUBLE_EQ(s.p90, 4.6);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 5);
  EXPECT_FALSE(s.interval);
}

TEST(Statistics, TheMiddleHalfLeavesOutTheExtremes) {
  const std::vector<double> values{10, 1, 5, 1000, 6, 7, 4, 0};
  std::vector<size_t> middle = middle_half(values);
  std::sort(middle.begin(), middle.end());
  EXPECT_EQ(middle, (std::vector<size_t>{2, 4, 5, 6}));
  EXPECT_EQ(middle_half(std::vector<double>{3}).size(), 1U);
}

}  // namespace
}  // namespace treadle::profile
