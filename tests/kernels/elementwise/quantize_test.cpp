#include "kernels/elementwise/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

template <typename Code>
class QuantizeBytes : public ::testing::Test {};
using Codes = ::testing::Types<uint8_t, int8_t>;
TYPED_TEST_SUITE(QuantizeBytes, Codes);

TYPED_TEST(QuantizeBytes, EqualsTheFormula) {
  constexpr float kLow = std::numeric_limits<TypeParam>::min(), kHigh = std::numeric_limits<TypeParam>::max();
  test::Random random(71);
  for (int round = 0; round < 200; ++round) {
    const int64_t n = random.integer(0, 200);
    std::vector<float> x = random.vector(n, -3, round % 3 == 0 ? -1 : 4);
    if (n > 3 && random.coin()) x[static_cast<size_t>(random.integer(0, n - 1))] = NAN;
    if (n > 3 && random.coin()) x[static_cast<size_t>(random.integer(0, n - 1))] = random.coin() ? INFINITY : -1e30F;
    // One of the scales makes exact halves likely, which must be rounded to even.
    const float scale = random.coin() ? 0.0625F : 0.0137F,
                zero = static_cast<float>(random.integer(std::numeric_limits<TypeParam>::min(), std::numeric_limits<TypeParam>::max()));
    for (float& v : x)
      if (random.coin()) v = std::nearbyint(v * 16) / 32;
    std::vector<TypeParam> y(static_cast<size_t>(n), 77);
    quantize_bytes(x.data(), n, scale, zero, y.data());
    std::vector<float> back(x.size());
    dequantize_bytes(y.data(), n, scale, zero, back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const float code = std::isnan(x[i]) ? kLow : std::clamp(std::nearbyint(x[i] / scale) + zero, kLow, kHigh);
      ASSERT_EQ(int{y[i]}, static_cast<int>(code)) << x[i];
      ASSERT_EQ(back[i], (code - zero) * scale);
    }
  }
}

// Quotients next to the middle between two codes, where a product with the inverse rounds differently, and scales without an inverse.
TYPED_TEST(QuantizeBytes, DividesNumbersNextToAMiddle) {
  for (const float scale : {0.1F, 0.0137F, 3.3e-7F, 7e12F, 1.3e-38F, 3e-44F, 2.9e38F})
    for (const float zero : {0.0F, 77.0F}) {
      std::vector<float> x;
      for (int code = -260; code <= 260; ++code) {
        float value = static_cast<float>((code + 0.5) * double{scale});
        for (int ulps = 0; ulps < 4; ++ulps) value = std::nextafter(value, -INFINITY);
        for (int ulps = 0; ulps < 9; ++ulps, value = std::nextafter(value, INFINITY)) x.push_back(value);
      }
      std::vector<TypeParam> y(x.size());
      quantize_bytes(x.data(), static_cast<int64_t>(x.size()), scale, zero, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const float code = std::clamp(std::nearbyint(x[i] / scale) + zero, float{std::numeric_limits<TypeParam>::min()},
                                      float{std::numeric_limits<TypeParam>::max()});
        ASSERT_EQ(int{y[i]}, static_cast<int>(code)) << x[i] << " / " << scale;
      }
    }
}

TEST(RangeAroundZero, PassesOverNaN) {
  test::Random random(72);
  for (int round = 0; round < 200; ++round) {
    const int64_t n = random.integer(0, 200);
    std::vector<float> x = random.vector(n, -3, round % 3 == 0 ? -1 : 4);
    if (n > 3 && random.coin()) x[static_cast<size_t>(random.integer(0, n - 1))] = NAN;
    float low = 0, high = 0;
    for (float v : x)
      if (!std::isnan(v)) low = std::min(low, v), high = std::max(high, v);
    const FloatRange range = range_around_zero(x.data(), n);
    ASSERT_EQ(range.low, low);
    ASSERT_EQ(range.high, high);
  }
}

}  // namespace
}  // namespace treadle::kernels
