#include "kernels/conv/nhwc_bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/bf16_reference.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::Random;

/// Compares products by the processor's instructions and emulated ones, with 1 and 3 threads, with the definition in double. The definition
/// uses the rounded operands.
void check(const ConvParams& p, Bf16Form form, Random& random, Unary activation) {
  const int64_t y_size = p.N * p.M * p.window.out_size();
  const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.M * (p.C / p.group) * p.window.kernel_size()),
             bias = random.vector(p.M), residual = random.vector(y_size);
  ConvEpilogue e;
  e.activation = activation, e.a = -0.5F, e.b = 0.75F;
  if (random.coin()) e.bias = bias.data();
  if (random.coin()) e.residual = residual.data();
  auto expected =
      test::channels_last(test::reference_conv<float, double>(p, test::as_read(x, form), test::as_read(weights, form)), p.N, p.M);
  double largest = 1;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  test::apply_epilogue(e, p.M, expected);
  const std::vector<float> inner = test::channels_last(x, p.N, p.C);
  std::vector<uint32_t> packed(static_cast<size_t>(nhwc_bf16_packed_size(p, form)));
  nhwc_bf16_pack(p, form, weights.data(), packed.data());
  for (bool emulated : {false, true}) {
    std::vector<float> first;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<char> scratch(nhwc_bf16_scratch_bytes(p, form) + 64, 0x7F);
      std::vector<float> y(static_cast<size_t>(y_size), 77);
      nhwc_bf16_conv(p, form, inner.data(), packed.data(), y.data(), e, scratch.data(), &pool, emulated);
      for (int64_t i = 0; i < y_size; ++i)
        ASSERT_NEAR(y[i], expected[i], (form == Bf16Form::three ? 1e-4 : 3e-6) * largest) << "element " << i;
      if (first.empty()) first = y;
      ASSERT_EQ(first, y) << "other bits with " << threads << " threads";
    }
  }
}

constexpr Bf16Form kForms[] = {Bf16Form::three, Bf16Form::one, Bf16Form::float16, Bf16Form::one};
constexpr Unary kActivations[] = {Unary::none, Unary::clip, Unary::sigmoid};

TEST(NhwcBf16, EqualsTheDefinitionOfRoundedOperands) {
  Random random(81);
  for (int round = 0; round < 200; ++round) {
    ConvParams p;
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 2)), random.coin() ? 8 : 25);
    p.group = random.coin() ? 1 : random.integer(1, 4);
    p.N = random.integer(0, 2), p.C = p.group * 2 * random.integer(1, 12), p.M = p.group * random.integer(1, random.coin() ? 20 : 150);
    ASSERT_TRUE(nhwc_bf16_fits(p));
    check(p, kForms[round % 4], random, kActivations[round % 3]);
  }
}

TEST(NhwcBf16, PointwiseAndDeepOnesEqualTheDefinition) {
  Random random(82);
  for (int round = 0; round < 20; ++round) {
    const bool deep = round % 5 == 0;
    ConvParams p{.N = random.integer(1, 2), .C = 2 * random.integer(1, deep ? 2500 : 60), .M = random.integer(1, deep ? 80 : 300)};
    const int64_t side = deep ? 5 : 25, extent[] = {random.integer(1, side), random.integer(1, side)}, one[] = {1, 1};
    p.window = make_window(extent, extent, one, {}, {}, {});
    check(p, kForms[round % 4], random, kActivations[round % 3]);
  }
}

// Tests wide rows, each of which is a separate block of evenly spaced pixels, also with padding. Also tests blocks of several rows.
TEST(NhwcBf16, WideLinesEqualTheDefinition) {
  Random random(83);
  for (int round = 0; round < 12; ++round) {
    ConvParams p{.N = 1, .C = 2 * random.integer(1, 20), .M = random.integer(1, 80)};
    const int64_t in[] = {random.integer(3, 9), random.integer(60, 240)}, kernel[] = {3, 3}, stride[] = {1, random.integer(1, 2)},
                  pad = random.integer(0, 1), pads[] = {pad, pad, pad, pad};
    const int64_t out[] = {in[0] + 2 * pad - 2, (in[1] + 2 * pad - 3) / stride[1] + 1};
    p.window = make_window(in, out, kernel, stride, pads, {});
    check(p, kForms[round % 4], random, kActivations[round % 3]);
  }
}

TEST(NhwcBf16, LeavesWindowsWithRunsOfOddLength) {
  ConvParams p{.N = 1, .C = 3, .M = 8};
  const int64_t in[] = {9, 9}, out[] = {7, 7}, kernel[] = {3, 3};
  p.window = make_window(in, out, kernel, {}, {}, {});
  EXPECT_FALSE(nhwc_bf16_fits(p));
}

}  // namespace
}  // namespace treadle::kernels
