#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/values/float_types.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

Tensor cast(const Tensor& x, DType to, Attributes attributes = {}) {
  attributes.set("to", static_cast<int64_t>(to));
  return run_op({"Cast", 28, {x}, std::move(attributes)})[0];
}

TEST(Cast, OfOpset1NamesTheType) {
  EXPECT_EQ(values<int64_t>(run_op({"Cast", 1, {floats({2}, {1.9F, -1.9F})}, {{"to", std::string("INT64")}}})[0]),
            (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(values<double>(run_op({"Cast", 1, {floats({1}, {1.5F})}, {{"to", std::string("DOUBLE")}}})[0]), (std::vector<double>{1.5}));
}

TEST(Cast, DropsTheHigherBitsOfIntegers) {
  EXPECT_EQ(values<int8_t>(cast(tensor<int16_t>({2}, {200, -129}), DType::int8)), (std::vector<int8_t>{-56, 127}));
  EXPECT_EQ(values<uint8_t>(cast(tensor<int64_t>({2}, {256, -1}), DType::uint8)), (std::vector<uint8_t>{0, 255}));
}

TEST(Cast, KeepsLargeUnsignedNumbers) {
  constexpr uint64_t kTop = uint64_t{1} << 63;
  EXPECT_EQ(values<float>(cast(tensor<uint64_t>({1}, {kTop}), DType::float32))[0], 0x1p63F);
  EXPECT_EQ(values<uint64_t>(cast(floats({1}, {0x1p63F}), DType::uint64))[0], kTop);
  EXPECT_EQ(static_cast<float>(values<BFloat16>(cast(tensor<uint64_t>({1}, {kTop}), DType::bfloat16))[0]), 0x1p63F);
}

TEST(Cast, ToBoolIsTrueForAllButZero) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(values<bool>(cast(floats({5}, {0, -0.0F, 0.1F, nan, -2}), DType::boolean)),
            (std::vector<bool>{false, false, true, true, true}));
  EXPECT_EQ(values<float>(cast(tensor<bool>({2}, {true, false}), DType::float32)), (std::vector<float>{1, 0}));
}

TEST(Cast, RoundsDoublesOnce) {
  // In half precision, the number nearest to 1 + 2^-11 + 2^-40 is 1 + 2^-10. A conversion to float first would give 1 + 2^-11, which is a
  // tie and becomes 1.
  double x = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(static_cast<float>(values<Float16>(cast(tensor<double>({1}, {x}), DType::float16))[0]), 1 + 0x1p-10F);
}

// Tests OCP's two formats with 6 bits, whose largest numbers are 7.5 and 28. Ties round to even.
TEST(Cast, PacksAndUnpacksSixBitFloats) {
  Tensor x = floats({5}, {7.5F, -0.125F, 100, 1.0625F, 28});
  EXPECT_EQ(values<float>(cast(cast(x, DType::float6e2m3), DType::float32)), (std::vector<float>{7.5F, -0.125F, 7.5F, 1, 7.5F}));
  EXPECT_EQ(values<float>(cast(cast(x, DType::float6e3m2), DType::float32)), (std::vector<float>{8, -0.125F, 28, 1, 28}));
}

TEST(Cast, OfManyPackedElementsLeavesNoneOut) {
  std::vector<int32_t> x(40001);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int32_t>(i % 16) - 8;
  Tensor packed = cast(tensor<int32_t>({static_cast<int64_t>(x.size())}, x), DType::int4);
  EXPECT_EQ(values<int32_t>(cast(packed, DType::int32)), x);
}

TEST(Cast, OfFloatsToPackedIntegersTakesTheNearest) {
  const Tensor packed = cast(floats({8}, {-1.5F, -0.6F, -0.4F, 0.4F, 0.5F, 1.5F, 2.5F, 6.6F}), DType::int4);
  EXPECT_EQ(values<int32_t>(cast(packed, DType::int32)), (std::vector<int32_t>{-2, -1, 0, 0, 1, 2, 3, 7}));
}

TEST(Cast, ReadsAndWritesStrings) {
  std::vector<std::string> x = {" 3.14", "1e-5", "+INF", "-inf", "NaN", "1000"};
  auto y = values<float>(cast(Tensor::strings({6}, x), DType::float32));
  EXPECT_EQ(y[0], 3.14F);
  EXPECT_EQ(y[1], 1e-5F);
  EXPECT_TRUE(std::isinf(y[2]) && y[2] > 0 && std::isinf(y[3]) && y[3] < 0 && std::isnan(y[4]));
  EXPECT_EQ(y[5], 1000);
  std::vector<std::string> integers = {"-9223372036854775808", "100.5"};
  EXPECT_EQ(values<int64_t>(cast(Tensor::strings({2}, integers), DType::int64)),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min(), 100}));
  // The text has eight digits, like onnxruntime's.
  EXPECT_EQ(values<std::string>(cast(floats({5}, {314.15926F, 1, 1e-5F, 1e20F, 0.1F}), DType::string)),
            (std::vector<std::string>{"314.15927", "1", "9.9999997e-06", "1e+20", "0.1"}));
  EXPECT_EQ(values<std::string>(cast(tensor<int8_t>({1}, {-7}), DType::string)), (std::vector<std::string>{"-7"}));
  std::vector<std::string> word = {"Hello"};
  EXPECT_THROW(cast(Tensor::strings({1}, word), DType::float32), Error);
}

TEST(CastLike, TakesTheTypeOfItsSecondInput) {
  EXPECT_EQ(values<int32_t>(run_op({"CastLike", 19, {floats({1}, {2.7F}), tensor<int32_t>({0}, {})}})[0]), (std::vector<int32_t>{2}));
}

TEST(BitCast, KeepsBitsAndRefusesOtherWidths) {
  EXPECT_EQ(values<int32_t>(run_op({"BitCast", 26, {floats({1}, {1})}, {{"to", static_cast<int64_t>(DType::int32)}}})[0])[0], 0x3F800000);
  EXPECT_THROW(run_op({"BitCast", 26, {floats({1}, {1})}, {{"to", static_cast<int64_t>(DType::int64)}}}), Error);
}

}  // namespace
}  // namespace treadle
