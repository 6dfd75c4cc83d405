#include "core/values/float_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace treadle {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Expected values computed by ml_dtypes 0.6.0, whose conversions do not saturate.
struct MiniCase {
  float value;
  uint8_t e4m3fn, e4m3fnuz, e5m2, e5m2fnuz, e2m1;
};
constexpr MiniCase kMiniCases[] = {
    {0.0F, 0x00, 0x00, 0x00, 0x00, 0x00},        {-0.0F, 0x80, 0x00, 0x80, 0x00, 0x08},     {1.0F, 0x38, 0x40, 0x3C, 0x40, 0x02},
    {-1.5F, 0xBC, 0xC4, 0xBE, 0xC2, 0x0B},       {0.1F, 0x1D, 0x25, 0x2E, 0x32, 0x00},      {3.14159F, 0x45, 0x4D, 0x42, 0x46, 0x05},
    {5.0F, 0x4A, 0x52, 0x45, 0x49, 0x06},        {7.0F, 0x4E, 0x56, 0x47, 0x4B, 0x07},      {0.26F, 0x28, 0x30, 0x34, 0x38, 0x01},
    {0.75F, 0x34, 0x3C, 0x3A, 0x3E, 0x02},       {2.5F, 0x42, 0x4A, 0x41, 0x45, 0x04},      {3.5F, 0x46, 0x4E, 0x43, 0x47, 0x06},
    {240.0F, 0x77, 0x7F, 0x5C, 0x60, 0x07},      {247.9F, 0x77, 0x7F, 0x5C, 0x60, 0x07},    {248.0F, 0x78, 0x80, 0x5C, 0x60, 0x07},
    {448.0F, 0x7E, 0x80, 0x5F, 0x63, 0x07},      {463.9F, 0x7E, 0x80, 0x5F, 0x63, 0x07},    {464.0F, 0x7E, 0x80, 0x5F, 0x63, 0x07},
    {464.1F, 0x7F, 0x80, 0x5F, 0x63, 0x07},      {480.0F, 0x7F, 0x80, 0x60, 0x64, 0x07},    {57344.0F, 0x7F, 0x80, 0x7B, 0x7F, 0x07},
    {61439.0F, 0x7F, 0x80, 0x7B, 0x7F, 0x07},    {61440.0F, 0x7F, 0x80, 0x7C, 0x80, 0x07},  {65536.0F, 0x7F, 0x80, 0x7C, 0x80, 0x07},
    {-1e9F, 0xFF, 0x80, 0xFC, 0x80, 0x0F},       {1e-3F, 0x01, 0x01, 0x14, 0x18, 0x00},     {0x1p-10F, 0x00, 0x01, 0x14, 0x18, 0x00},
    {0x1.02p-10F, 0x01, 0x01, 0x14, 0x18, 0x00}, {0x1p-11F, 0x00, 0x00, 0x10, 0x14, 0x00},  {0x1p-17F, 0x00, 0x00, 0x00, 0x01, 0x00},
    {0x1.04p-17F, 0x00, 0x00, 0x01, 0x01, 0x00}, {-0x1p-18F, 0x80, 0x00, 0x80, 0x00, 0x08}, {1e-30F, 0x00, 0x00, 0x00, 0x00, 0x00},
    {kInf, 0x7F, 0x80, 0x7C, 0x80, 0x07},        {-kInf, 0xFF, 0x80, 0xFC, 0x80, 0x0F},     {kNaN, 0x7F, 0x80, 0x7E, 0x80, 0x08},
};

// Expected values computed by NumPy (float16) and ml_dtypes (bfloat16).
struct HalfCase {
  float value;
  uint16_t float16, bfloat16;
};
constexpr HalfCase kHalfCases[] = {
    {1.0F, 0x3C00, 0x3F80},          {-2.0F, 0xC000, 0xC000},         {65504.0F, 0x7BFF, 0x4780}, {65519.99F, 0x7BFF, 0x4780},
    {65520.0F, 0x7C00, 0x4780},      {0.1F, 0x2E66, 0x3DCD},          {3.14159F, 0x4248, 0x4049}, {1e-8F, 0x0000, 0x322C},
    {2.9802322e-8F, 0x0000, 0x3300}, {2.9802326e-8F, 0x0001, 0x3300}, {6e-8F, 0x0001, 0x3381},    {6.1e-5F, 0x03FF, 0x3880},
    {2049.0F, 0x6800, 0x4500},       {2051.0F, 0x6802, 0x4500},       {-1e-5F, 0x80A8, 0xB728},   {1e9F, 0x7C00, 0x4E6E},
};

uint32_t bits_of_float(float value) { return std::bit_cast<uint32_t>(value); }

TEST(FloatTypes, HalvesMatchNumPyAndMlDtypes) {
  for (const HalfCase& c : kHalfCases) {
    EXPECT_EQ(Float16(c.value).bits, c.float16) << c.value;
    EXPECT_EQ(BFloat16(c.value).bits, c.bfloat16) << c.value;
  }
}

TEST(FloatTypes, MiniFloatsMatchMlDtypes) {
  for (const MiniCase& c : kMiniCases) {
    EXPECT_EQ(Float8E4M3FN(c.value, false).bits, c.e4m3fn) << c.value;
    EXPECT_EQ(Float8E4M3FNUZ(c.value, false).bits, c.e4m3fnuz) << c.value;
    EXPECT_EQ(Float8E5M2(c.value, false).bits, c.e5m2) << c.value;
    EXPECT_EQ(Float8E5M2FNUZ(c.value, false).bits, c.e5m2fnuz) << c.value;
    EXPECT_EQ(Float4E2M1(c.value).bits, c.e2m1) << c.value;
  }
}

#ifdef __FLT16_MAX__  // the compiler's own binary16 computes the expected values independently
#ifdef __aarch64__
using CompilersHalf = __fp16;  // on this machine, GCC 12 has no _Float16 in C++
#else
using CompilersHalf = _Float16;
#endif
TEST(FloatTypes, EveryFloat16DecodesAsTheCompilersDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto expected = static_cast<float>(std::bit_cast<CompilersHalf>(static_cast<uint16_t>(bits)));
    auto value = static_cast<float>(Float16::from_bits(static_cast<uint16_t>(bits)));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(value)) << bits;
    else
      EXPECT_EQ(bits_of_float(value), bits_of_float(expected)) << bits;
  }
}

TEST(FloatTypes, Float16EncodesAsTheCompilersDoes) {
  // With this prime number as step, the loop reaches all exponents and roundings.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 3989) {
    auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(Float16(value).bits, std::bit_cast<uint16_t>(static_cast<CompilersHalf>(value))) << value;
  }
}

TEST(FloatTypes, ADoubleIsRoundedOnceOnly) {
  for (int i = -40; i <= 40; ++i) {
    for (double base : {1.0 + 0x1p-11, 3.0 - 0x1p-10, 0x1p-15 + 0x1p-25, 65519.0, -2049.0}) {
      double value = base * (1.0 + i * 0x1p-40);  // around ties of binary16, closer than a float can tell
      ASSERT_EQ(Float16(value).bits, std::bit_cast<uint16_t>(static_cast<CompilersHalf>(value))) << value;
    }
  }
}
#endif

TEST(FloatTypes, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    auto bits = static_cast<uint16_t>(i);
    auto half = static_cast<float>(Float16::from_bits(bits));
    if (std::isnan(half))
      EXPECT_EQ(Float16(half).bits, bits | 0x200) << i;
    else
      EXPECT_EQ(Float16(half).bits, bits);
    auto brain = static_cast<float>(BFloat16::from_bits(bits));
    if (std::isnan(brain))
      EXPECT_EQ(BFloat16(brain).bits, bits | 0x40) << i;
    else
      EXPECT_EQ(BFloat16(brain).bits, bits);
  }
}

TEST(FloatTypes, NaNsWithLowPayloadDoNotBecomeInfinite) {
  auto low = std::bit_cast<float>(0x7F800001U);
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(low))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(low))));
}

// Returns the nearest code, found by trying all codes. A tie goes to the even code.
template <typename T>
uint8_t nearest_by_search(float value) {
  value = std::min(value, 2 * static_cast<float>(T::from_bits(T::kMax)));  // beyond this limit all distances would round to the same double
  double best = std::numeric_limits<double>::infinity();
  unsigned best_code = 0;
  for (unsigned code = 0; code <= T::kMax; ++code) {
    double distance = std::abs(static_cast<double>(T::from_bits(static_cast<uint8_t>(code))) - std::abs(static_cast<double>(value)));
    if (distance < best || (distance == best && code % 2 == 0)) best = distance, best_code = code;
  }
  return static_cast<uint8_t>(best_code);
}

template <typename T>
class MiniFloats : public testing::Test {};
using MiniFloatTypes = testing::Types<Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float6E2M3, Float6E3M2, Float4E2M1>;
TYPED_TEST_SUITE(MiniFloats, MiniFloatTypes);

TYPED_TEST(MiniFloats, EveryCodeSurvivesTheRoundTrip) {
  for (unsigned i = 0; i < (1U << TypeParam::kBits); ++i) {
    auto value = static_cast<float>(TypeParam::from_bits(static_cast<uint8_t>(i)));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << i;
    else
      EXPECT_EQ(TypeParam(value, false).bits, i);
  }
}

TYPED_TEST(MiniFloats, EncodingFindsTheNearestCode) {
  for (uint64_t bits = 0; bits < 0x7F800000U; bits += 104729) {
    auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(TypeParam(value).bits, nearest_by_search<TypeParam>(value)) << value;
  }
  for (unsigned code = 0; code < TypeParam::kMax; ++code) {  // halfway between two codes
    float tie = (static_cast<float>(TypeParam::from_bits(static_cast<uint8_t>(code))) +
                 static_cast<float>(TypeParam::from_bits(static_cast<uint8_t>(code + 1)))) /
                2;
    ASSERT_EQ(TypeParam(tie).bits, nearest_by_search<TypeParam>(tie)) << tie;
  }
}

TYPED_TEST(MiniFloats, SaturationTakesInfinityToTheLargestNumber) {
  auto largest = static_cast<float>(TypeParam::from_bits(TypeParam::kMax));
  EXPECT_EQ(static_cast<float>(TypeParam(kInf, true)), largest);
  EXPECT_EQ(static_cast<float>(TypeParam(-kInf, true)), -largest);
  EXPECT_EQ(static_cast<float>(TypeParam(1e30F, true)), largest);
}

TEST(FloatTypes, ScalesFollowOnnxTables) {
  using enum ScaleRounding;
  // With saturation, the conversion rounds up.
  EXPECT_EQ(Float8E8M0(0.0F).bits, 0);
  EXPECT_EQ(Float8E8M0(kNaN).bits, 0xFF);
  EXPECT_EQ(Float8E8M0(kInf).bits, 0xFE);
  EXPECT_EQ(Float8E8M0(3e38F).bits, 0xFE);
  EXPECT_EQ(Float8E8M0(1e-40F).bits, 0);
  // Without saturation, the conversion rounds to the nearest value.
  EXPECT_EQ(Float8E8M0(0.0F, false, nearest).bits, 0xFF);
  EXPECT_EQ(Float8E8M0(kInf, false, nearest).bits, 0xFF);
  EXPECT_EQ(Float8E8M0(3e38F, false, nearest).bits, 0xFF);
  EXPECT_EQ(Float8E8M0(1e-40F, false, nearest).bits, 0xFF);
  // Results of the ONNX 1.23 reference for [0.124, 0.25, 1.1, 1.5, 3.1], rounded up, down and to the nearest.
  const float values[] = {0.124F, 0.25F, 1.1F, 1.5F, 3.1F};
  const uint8_t ups[] = {124, 125, 128, 128, 129}, downs[] = {123, 125, 127, 127, 128}, nearests[] = {124, 125, 127, 128, 129};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Float8E8M0(values[i], true, up).bits, ups[i]);
    EXPECT_EQ(Float8E8M0(values[i], true, down).bits, downs[i]);
    EXPECT_EQ(Float8E8M0(values[i], true, nearest).bits, nearests[i]);
  }
}

TEST(FloatTypes, EveryScaleSurvivesTheRoundTripInEveryRounding) {
  for (unsigned i = 0; i < 255; ++i) {
    auto value = static_cast<float>(Float8E8M0::from_bits(static_cast<uint8_t>(i)));
    EXPECT_EQ(value, std::ldexp(1.0F, static_cast<int>(i) - 127));
    for (auto rounding : {ScaleRounding::up, ScaleRounding::down, ScaleRounding::nearest})
      EXPECT_EQ(Float8E8M0(value, false, rounding).bits, i);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(Float8E8M0::from_bits(0xFF))));
}

TEST(FloatTypes, PackedElementsStartInTheLowBits) {
  const uint8_t nibbles[] = {0x8F, 0x17};
  EXPECT_EQ(Int4::get_packed(nibbles, 0), -1);
  EXPECT_EQ(Int4::get_packed(nibbles, 1), -8);
  EXPECT_EQ(Int4::get_packed(nibbles, 2), 7);
  EXPECT_EQ(UInt4::get_packed(nibbles, 1), 8);
  EXPECT_EQ(static_cast<float>(PackedFloat4E2M1::get_packed(nibbles, 0)), -6.0F);
  const uint8_t pairs[] = {0b11100100, 0b01};
  EXPECT_EQ(UInt2::get_packed(pairs, 2), 2);
  EXPECT_EQ(Int2::get_packed(pairs, 2), -2);
  EXPECT_EQ(Int2::get_packed(pairs, 3), -1);
  EXPECT_EQ(Int2::get_packed(pairs, 4), 1);
}

TEST(FloatTypes, SixBitFloatsMatchMlDtypes) {
  const float values[] = {-0.0F, -1.5F, 0.1F, 3.14159F, 7.25F, 30.0F, -kInf, kNaN, 0.0625F, 0.032F};
  const uint8_t e2m3[] = {0x20, 0x2C, 0x01, 0x15, 0x1E, 0x1F, 0x3F, 0x20, 0x00, 0x00};
  const uint8_t e3m2[] = {0x20, 0x2E, 0x02, 0x12, 0x17, 0x1F, 0x3F, 0x20, 0x01, 0x01};
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Float6E2M3(values[i]).bits, e2m3[i]) << values[i];
    EXPECT_EQ(Float6E3M2(values[i]).bits, e3m2[i]) << values[i];
  }
}

TEST(FloatTypes, SixBitElementsCrossBytes) {
  // onnx.numpy_helper packs the codes 1, 2, 0x3F, 0x2A, 5 into these bytes.
  std::vector<uint8_t> bytes(4, 0xFF);
  const uint8_t codes[] = {1, 2, 0x3F, 0x2A, 5};
  for (int i = 4; i >= 0; --i) PackedFloat6E2M3::set_packed(bytes.data(), i, Float6E2M3::from_bits(codes[i]));
  EXPECT_EQ(bytes, (std::vector<uint8_t>{0x81, 0xF0, 0xAB, 0xC5}));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(PackedFloat6E2M3::get_packed(bytes.data(), i).bits, codes[i]);
}

template <typename T>
void check_packed_round_trip() {
  constexpr int kCount = 37;
  std::vector<uint8_t> bytes((kCount * T::kBits + 7) / 8, 0xA5);
  auto value = [](int i) { return static_cast<typename T::value_type>(T::kMin + i * 5 % (T::kMax - T::kMin + 1)); };
  for (int i = kCount - 1; i >= 0; --i) T::set_packed(bytes.data(), i, value(i));
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(T::get_packed(bytes.data(), i), value(i)) << i;
}

TEST(FloatTypes, WritingAPackedElementKeepsItsNeighbors) {
  check_packed_round_trip<Int4>();
  check_packed_round_trip<UInt4>();
  check_packed_round_trip<Int2>();
  check_packed_round_trip<UInt2>();
}

TEST(FloatTypes, TensorsGiveTypedAccess) {
  Tensor tensor = Tensor::scalar(Float16(0.5F));
  EXPECT_EQ(tensor.dtype(), DType::float16);
  EXPECT_EQ(static_cast<float>(*tensor.data<Float16>()), 0.5F);
  EXPECT_LT(std::numeric_limits<BFloat16>::lowest(), BFloat16(0));
}

}  // namespace
}  // namespace treadle
