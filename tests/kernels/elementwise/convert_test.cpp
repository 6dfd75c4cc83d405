#include "kernels/elementwise/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace treadle::kernels {
namespace {

template <typename T>
class Convert : public ::testing::Test {};
using NarrowTypes = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(Convert, NarrowTypes);

TYPED_TEST(Convert, WidensEveryCodeAsTheScalarConversionDoes) {
  std::vector<TypeParam> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = TypeParam::from_bits(static_cast<uint16_t>(i));
  std::vector<float> wide(codes.size());
  widen(codes.data(), wide.data(), static_cast<int64_t>(codes.size()));
  for (size_t i = 0; i < codes.size(); ++i) {
    auto expected = static_cast<float>(codes[i]);
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(wide[i])) << i;
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
  }
}

TYPED_TEST(Convert, NarrowsWithTheScalarConversionsRounding) {
  std::mt19937 random(1);
  std::vector<float> x = {0,
                          -0.0F,
                          65504,
                          65519.996F,
                          65520,
                          1e30F,
                          -1e30F,
                          0x1p-24F,
                          0x1p-25F,
                          0x1.8p-25F,
                          1 + 0x1p-11F,
                          1 + 0x1.8p-10F,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max(),
                          1e-40F};
  for (int i = 0; i < 100000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  std::vector<TypeParam> y(x.size());
  narrow(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]))
      ASSERT_TRUE(std::isnan(static_cast<float>(y[i])));
    else
      ASSERT_EQ(y[i].bits, TypeParam(x[i]).bits) << x[i];
  }
}

TEST(ConvertToBytes, KeepsTheLowestByteOfWholeNumbers) {
  std::mt19937 random(2);
  std::vector<float> x = {0,       -0.0F,    0.99F,      -0.99F,    255,     256,   300.7F,   -1,        -300.7F,
                          0x1p31F, -0x1p31F, 2147483520, 0x1.8p40F, 0x1p63F, 1e30F, INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 10000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  std::vector<uint8_t> y(x.size());
  narrow(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool fits = x[i] >= -0x1p63F && x[i] < 0x1p63F;
    ASSERT_EQ(int{y[i]}, fits ? static_cast<int>(static_cast<uint8_t>(static_cast<int64_t>(x[i]))) : 0) << x[i];
  }
}

TEST(Convert, IntegersToFloatsAndBack) {
  std::mt19937_64 random(2);
  std::vector<int64_t> whole = {
      0, 1, -1, 16777217, -16777219, 2147483647, -2147483648, 2147483648, 1LL << 53, (1LL << 53) + 1, 0x7FFF'FFBF'FFFF'FFFF};
  for (int i = 0; i < 4000; ++i) whole.push_back(static_cast<int64_t>(random()) >> (random() % 64));
  std::vector<float> rounded(whole.size());
  to_float(whole.data(), rounded.data(), static_cast<int64_t>(whole.size()));
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(rounded[i], static_cast<float>(whole[i])) << whole[i];

  std::vector<float> x = {0,
                          -0.0F,
                          0.99F,
                          -0.99F,
                          2147483520,
                          2147483648,
                          -2147483648,
                          -2147483904,
                          9.2233715e18F,
                          9.2233720e18F,
                          -9.2233720e18F,
                          -1e19F,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          1e-40F};
  for (int i = 0; i < 4000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-8F);
  std::vector<int64_t> truncated(x.size());
  to_int64(x.data(), truncated.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool holds = x[i] >= -9223372036854775808.0F && x[i] < 9223372036854775808.0F;
    ASSERT_EQ(truncated[i], holds ? static_cast<int64_t>(x[i]) : std::numeric_limits<int64_t>::min()) << x[i];
  }
}

}  // namespace
}  // namespace treadle::kernels
