#include "quantize/codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quantize/histogram.h"

namespace treadle::quantization {
namespace {

std::vector<float> normal_numbers(size_t n, float scale = 1) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = scale * normal(generator);
  return values;
}

TEST(Codes, BytesAreWithinHalfAStepOfWhatTheyStandFor) {
  const std::vector<float> values = normal_numbers(6 * 40);
  for (int axis : {-1, 0, 1}) {
    const ByteWeights w = byte_weights(Tensor::of<float>(Shape{6, 40}, std::span<const float>(values)), axis, 127);
    EXPECT_EQ(w.scales.num_elements(), axis < 0 ? 1 : axis == 0 ? 6 : 40);
    for (int64_t i = 0; i < 240; ++i) {
      const float scale = w.scales.data<float>()[axis < 0 ? 0 : axis == 0 ? i / 40 : i % 40];
      EXPECT_LE(std::fabs(values[size_t(i)] - scale * static_cast<float>(w.codes.data<int8_t>()[i])), 0.5001F * scale);
      EXPECT_GE(w.codes.data<int8_t>()[i], -127);
    }
    EXPECT_GT(w.sqnr_db, 38);
  }
}

TEST(Codes, ZerosAndTinyNumbersHaveAStepThatIsNoSubnormal) {
  const std::vector<float> values{0, 0, 1e-42F, -1e-42F};
  const ByteWeights w = byte_weights(Tensor::of<float>(Shape{2, 2}, std::span<const float>(values)), 0, 127);
  for (int i : {0, 1}) EXPECT_EQ(w.scales.data<float>()[i], 1.0F);
  const BlockedWeights b = blocked_weights(values.data(), 1, 4, 4, 16, false);
  EXPECT_EQ(b.scales[0], 1.0F);
}

// The error of a uniform quantiser is step^2 / 12, so each additional bit gains 6 dB. A zero point improves results if all numbers have the
// same sign.
TEST(Codes, BlocksOfMoreBitsAndOfFewerNumbersAreNearer) {
  std::vector<float> values = normal_numbers(64 * 256);
  auto decibels = [&](int bits, int64_t block, bool symmetric) {
    return blocked_weights(values.data(), 64, 256, bits, block, symmetric).sqnr_db;
  };
  EXPECT_GT(decibels(4, 32, true), 19);
  EXPECT_GT(decibels(8, 32, true), 43);
  EXPECT_GT(decibels(4, 16, true), decibels(4, 128, true));
  for (float& x : values) x = std::fabs(x);
  EXPECT_GT(decibels(4, 32, false), decibels(4, 32, true) + 3);
}

TEST(Codes, RowsArePaddedToWholeBytes) {
  const std::vector<uint8_t> codes{1, 2, 3, 4, 5, 6};
  const Tensor packed = packed_rows(codes.data(), 2, 3, 6, 4, 8);
  EXPECT_EQ(packed.shape(), (Shape{2, 3}));
  const std::vector<uint8_t> expected{0x21, 0x83, 0x88, 0x54, 0x86, 0x88};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), packed.data<uint8_t>()));
}

TEST(Codes, TheRangeOfAnActivationHoldsZero) {
  EXPECT_EQ(affine_of(1, 3, DType::uint8).zero, 0);
  EXPECT_EQ(affine_of(-3, -1, DType::uint8).zero, 255);
  EXPECT_EQ(affine_of(0, 1, DType::int8).zero, -128);
  const Affine a = affine_of(-1, 3, DType::uint8);
  EXPECT_EQ(a.zero, 64);
  EXPECT_FLOAT_EQ(a.scale, 4.0F / 255);
}

TEST(Histogram, OnePassGivesWhatSortingGives) {
  std::vector<float> values = normal_numbers(100'000);
  Histogram parts(true), other(true);
  for (size_t i = 0; i < 10; ++i) {  // later parts have wider ranges, so the width of the bins doubles
    for (size_t j = 0; j < 10'000; ++j) values[i * 10'000 + j] *= static_cast<float>(i + 1);
    EXPECT_TRUE((i < 5 ? parts : other).add(values.data() + i * 10'000, 10'000));
  }
  parts.merge(other);
  EXPECT_EQ(parts.count(), 100'000);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  EXPECT_EQ(parts.range(CalibrationMethod::minmax, 0).low, *least);
  EXPECT_EQ(parts.range(CalibrationMethod::minmax, 0).high, *most);
  const Range range = parts.range(CalibrationMethod::percentile, 99);
  int64_t inside = 0;
  for (float x : values) inside += x >= range.low && x <= range.high ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(inside), 99'000, 200);
}

TEST(Histogram, EntropyCutsFarTailsAndLeavesEvenOnes) {
  std::vector<float> values = normal_numbers(100'000);
  values[0] = 500;
  Histogram tail(true);
  tail.add(values.data(), 100'000);
  EXPECT_LT(tail.range(CalibrationMethod::entropy, 0).high, 100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 1e5F - 0.5F;
  Histogram even(true);
  even.add(values.data(), 100'000);
  EXPECT_GT(even.range(CalibrationMethod::entropy, 0).high, 0.45);
}

// The values are like outputs of a Relu. Zero has an exact code in any range, so the number of zeros must not change the range.
TEST(Histogram, ZerosDoNotMoveTheRangeOfEntropy) {
  std::vector<float> values = normal_numbers(100'000), with_zeros;
  for (float& x : values) x = std::fabs(x);
  for (size_t i = 0; i < values.size(); ++i) {
    with_zeros.push_back(values[i]);
    with_zeros.insert(with_zeros.end(), {0.0F, -0.0F, 0.0F});
  }
  Histogram plain(true), spiked(true), parts(true), zeros(true);
  plain.add(values.data(), std::ssize(values));
  spiked.add(with_zeros.data(), std::ssize(with_zeros));
  const Range expected = plain.range(CalibrationMethod::entropy, 0);
  EXPECT_GT(expected.high, 3);  // nearly none of the 100'000 normal numbers exceeds 4
  EXPECT_EQ(spiked.range(CalibrationMethod::entropy, 0).high, expected.high);
  const std::vector<float> none(50'000, 0.0F);
  zeros.add(none.data(), std::ssize(none));
  parts.merge(zeros);
  parts.merge(plain);
  parts.merge(zeros);
  EXPECT_EQ(parts.count(), 200'000);
  EXPECT_EQ(parts.range(CalibrationMethod::entropy, 0).high, expected.high);
  // The percentage counts all values, including zeros.
  Range half = parts.range(CalibrationMethod::percentile, 75);
  const int64_t above = std::count_if(values.begin(), values.end(), [&](float x) { return x > half.high; });
  EXPECT_NEAR(static_cast<double>(above), 50'000, 500);
}

TEST(Histogram, RefusesWhatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Histogram histogram(true);
    const float values[] = {1, bad};
    EXPECT_FALSE(histogram.add(values, 2));
  }
}

}  // namespace
}  // namespace treadle::quantization
