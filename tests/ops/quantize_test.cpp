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

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(QuantizeLinear, RoundsHalfToEvenAndSaturates) {
  Tensor x = floats({10}, {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 300, -300, kInfinity, -kInfinity, 1e30F}), one = floats({}, {1});
  EXPECT_EQ(values<uint8_t>(run_op({"QuantizeLinear", 13, {x, one}})[0]), (std::vector<uint8_t>{0, 2, 2, 0, 0, 255, 0, 255, 0, 255}));
  EXPECT_EQ(values<int8_t>(run_op({"QuantizeLinear", 13, {x, one, tensor<int8_t>({}, {-1})}})[0]),
            (std::vector<int8_t>{-1, 1, 1, -1, -3, 127, -128, 127, -128, 127}));
  EXPECT_EQ(values<uint16_t>(run_op({"QuantizeLinear", 21, {x, one, tensor<uint16_t>({}, {65000})}})[0]),
            (std::vector<uint16_t>{65000, 65002, 65002, 65000, 64998, 65300, 64700, 65535, 0, 65535}));
}

TEST(QuantizeLinear, HasAScaleForEachPlaceAlongAnAxis) {
  Tensor x = floats({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), scale = floats({2}, {1, 2});
  Tensor zero = tensor<uint8_t>({2}, {0, 10});
  EXPECT_EQ(values<uint8_t>(run_op({"QuantizeLinear", 13, {x, scale, zero}})[0]), (std::vector<uint8_t>{1, 2, 12, 12, 5, 6, 14, 14}));
  EXPECT_EQ(values<uint8_t>(run_op({"QuantizeLinear", 13, {x, scale, zero}, {{"axis", int64_t{-1}}}})[0]),
            (std::vector<uint8_t>{1, 11, 3, 12, 5, 13, 7, 14}));
}

TEST(QuantizeLinear, HasAScaleForEachBlock) {
  // The last block has fewer elements than the others.
  Tensor x = floats({1, 5}, {1, 2, 3, 4, 5}), scale = floats({1, 3}, {1, 2, 0.5F});
  EXPECT_EQ(values<uint8_t>(run_op({"QuantizeLinear", 21, {x, scale}, {{"block_size", int64_t{2}}}})[0]),
            (std::vector<uint8_t>{1, 2, 2, 2, 10}));
  EXPECT_THROW(run_op({"QuantizeLinear", 21, {x, scale}, {{"block_size", int64_t{1}}}}), Error);
}

TEST(QuantizeLinear, PacksSmallTypes) {
  Tensor x = floats({5}, {-9, -1, 0, 6.6F, 100}), one = floats({}, {1});
  auto codes = [&](DType dtype) {
    Tensor y = run_op({"QuantizeLinear", 25, {x, one}, {{"output_dtype", static_cast<int64_t>(dtype)}}})[0];
    EXPECT_EQ(y.dtype(), dtype);
    return y;
  };
  std::vector<int> int4, uint2;
  Tensor y4 = codes(DType::int4), y2 = codes(DType::uint2), f4 = codes(DType::float4e2m1), f8 = codes(DType::float8e4m3fn);
  for (int64_t i = 0; i < 5; ++i) int4.push_back(Int4::get_packed(y4.raw(), i)), uint2.push_back(UInt2::get_packed(y2.raw(), i));
  EXPECT_EQ(int4, (std::vector<int>{-8, -1, 0, 7, 7}));
  EXPECT_EQ(uint2, (std::vector<int>{0, 0, 0, 3, 3}));
  EXPECT_EQ(static_cast<float>(PackedFloat4E2M1::get_packed(f4.raw(), 0)), -6);  // this is the largest number of the type
  EXPECT_EQ(static_cast<float>(reinterpret_cast<Float8E4M3FN*>(f8.raw())[3]), 6.5F);
}

TEST(QuantizeLinear, DividesInThePrecisionThatIsAskedFor) {
  Tensor x = tensor<Float16>({1}, {Float16(1000.0F)}), scale = tensor<Float16>({}, {Float16(3.0F)});
  // The quotient 333.33 lies between the binary16 numbers 333.25 and 333.5.
  EXPECT_EQ(values<uint16_t>(run_op({"QuantizeLinear", 23, {x, scale, tensor<uint16_t>({}, {0})}})[0]), (std::vector<uint16_t>{333}));
  Tensor far = tensor<Float16>({1}, {Float16(4099.0F)}), half = tensor<Float16>({}, {Float16(2.0F)});
  // binary16 represents 4099 as 4100, so the quotient is 2050.
  EXPECT_EQ(values<uint16_t>(run_op({"QuantizeLinear", 23, {far, half, tensor<uint16_t>({}, {0})}})[0]), (std::vector<uint16_t>{2050}));
}

TEST(QuantizeLinear, OfLongRowsEqualsItsDefinition) {
  const int64_t n = 70'001;  // enough elements for several chunks of a parallel loop, and a rest
  Tensor x(DType::float32, {n});
  for (int64_t i = 0; i < n; ++i) x.data<float>()[i] = 40 * std::sin(static_cast<float>(i));
  Tensor y = run_op({"QuantizeLinear", 13, {x, floats({}, {0.3F}), tensor<int8_t>({}, {5})}})[0];
  for (int64_t i = 0; i < n; ++i) {
    const float expected = std::min(127.0F, std::max(-128.0F, std::nearbyint(x.data<float>()[i] / 0.3F) + 5));
    ASSERT_EQ(y.data<int8_t>()[i], static_cast<int8_t>(expected)) << i;
  }
}

TEST(DequantizeLinear, UndoesQuantization) {
  Tensor x = tensor<uint8_t>({2, 2}, {0, 3, 128, 255});
  EXPECT_EQ(values<float>(run_op({"DequantizeLinear", 10, {x, floats({}, {2}), tensor<uint8_t>({}, {128})}})[0]),
            (std::vector<float>{-256, -250, 0, 254}));
  EXPECT_EQ(values<float>(run_op({"DequantizeLinear", 13, {tensor<int32_t>({2}, {100000, -7}), floats({}, {0.5F})}})[0]),
            (std::vector<float>{50000, -3.5F}));
  Tensor half = run_op({"DequantizeLinear", 19, {x, tensor<Float16>({2}, {Float16(0.5F), Float16(2.0F)})}, {{"axis", int64_t{0}}}})[0];
  EXPECT_EQ(half.dtype(), DType::float16);
  EXPECT_EQ(static_cast<float>(half.data<Float16>()[3]), 510);
  Tensor blocked = run_op({"DequantizeLinear", 21, {x, floats({1, 2}, {1, 10})}, {{"axis", int64_t{0}}, {"block_size", int64_t{2}}}})[0];
  EXPECT_EQ(values<float>(blocked), (std::vector<float>{0, 30, 128, 2550}));
}

TEST(DynamicQuantizeLinear, KeepsZeroExact) {
  auto y = run_op({"DynamicQuantizeLinear", 11, {floats({3}, {1, 2, 4})}, {}, 3});
  EXPECT_FLOAT_EQ(values<float>(y[1])[0], 4.0F / 255);
  EXPECT_EQ(values<uint8_t>(y[2])[0], 0);
  // 2 / (4 / 255) is 127.49999 in float32. onnx.reference and onnxruntime also give 127.
  EXPECT_EQ(values<uint8_t>(y[0]), (std::vector<uint8_t>{64, 127, 255}));
  auto zeros = run_op({"DynamicQuantizeLinear", 11, {floats({2}, {0, 0})}, {}, 3});
  EXPECT_EQ(values<uint8_t>(zeros[0]), (std::vector<uint8_t>{0, 0}));
  EXPECT_TRUE(std::isfinite(values<float>(zeros[1])[0]));
}

TEST(DynamicQuantizeLinear, OfAnInfiniteRangeHasACodeForZero) {
  for (float infinite : {kInfinity, -kInfinity}) {
    auto y = run_op({"DynamicQuantizeLinear", 11, {floats({3}, {infinite, 0, 1})}, {}, 3});
    EXPECT_EQ(values<float>(y[1])[0], kInfinity);
    EXPECT_EQ(values<uint8_t>(y[2])[0], 0);
    EXPECT_EQ(values<uint8_t>(y[0])[1], 0);
    EXPECT_EQ(values<uint8_t>(y[0])[2], 0);
  }
}

TEST(MatMulInteger, TakesZeroPointsForRowsAndColumns) {
  Tensor a = tensor<uint8_t>({2, 2}, {10, 20, 30, 255}), b = tensor<int8_t>({2, 2}, {1, -128, 127, 4});
  // The expected result is (a - [5, 10]^T) (b - [1, -2]).
  Tensor y = run_op({"MatMulInteger", 10, {a, b, tensor<uint8_t>({2}, {5, 10}), tensor<int8_t>({2}, {1, -2})}})[0];
  EXPECT_EQ(values<int32_t>(y), (std::vector<int32_t>{1890, -540, 30870, -1050}));
  EXPECT_EQ(values<int32_t>(run_op({"MatMulInteger", 10, {a, b}})[0]), (std::vector<int32_t>{2550, -1200, 32415, -2820}));
}

TEST(QLinearMatMul, OfFloat8GoesThroughFloats) {
  auto code = [](float v) { return Float8E4M3FN(v); };
  Tensor a = tensor<Float8E4M3FN>({1, 2}, {code(2), code(-4)}), b = tensor<Float8E4M3FN>({2, 1}, {code(3), code(0.5F)}),
         zero = tensor<Float8E4M3FN>({}, {code(0)});
  Tensor y = run_op({"QLinearMatMul", 21, {a, floats({}, {0.5F}), zero, b, floats({}, {2}), zero, floats({}, {0.25F}), zero}})[0];
  EXPECT_EQ(static_cast<float>(y.data<Float8E4M3FN>()[0]), 16);  // the sum is (6 - 2) * 0.5 * 2 / 0.25
}

TEST(QLinearConv, AddsItsBiasBeforeItScales) {
  Tensor x = tensor<uint8_t>({1, 1, 3}, {128, 130, 255}), w = tensor<int8_t>({2, 1, 2}, {1, 2, -3, 4}), one = floats({}, {1});
  Tensor x_zero = tensor<uint8_t>({}, {128}), w_zero = tensor<int8_t>({2}, {0, 0}), y_zero = tensor<uint8_t>({}, {100});
  Tensor y = run_op({"QLinearConv",
                     10,
                     {x, one, x_zero, w, floats({2}, {0.5F, 0.25F}), w_zero, floats({}, {2}), y_zero, tensor<int32_t>({2}, {4, -8})}})[0];
  // The sums are 4 + {4, 256} and -8 + {8, 502}; the scales are 1/4 and 1/8.
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{102, 165, 100, 162}));
}

}  // namespace
}  // namespace treadle
