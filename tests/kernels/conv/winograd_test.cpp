#include "kernels/conv/winograd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/movement/transpose_plane.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::channels_last;
using test::Random;

ConvParams params_3x3(int64_t N, int64_t C, int64_t M, int64_t high, int64_t wide, int64_t top, int64_t left, int64_t bottom,
                      int64_t right) {
  ConvParams p{.N = N, .C = C, .M = M};
  const int64_t in[] = {high, wide}, out[] = {high + top + bottom - 2, wide + left + right - 2}, three[] = {3, 3},
                pads[] = {top, left, bottom, right};
  p.window = make_window(in, out, three, {}, pads, {});
  return p;
}

struct Packed {
  Packed(const ConvParams& p, int out, const std::vector<float>& weights) : data(winograd_weights_size(p, out)) {
    winograd_pack(p, out, weights.data(), data.data());
  }
  std::vector<float> data;
};

TEST(Winograd, EqualsTheReferenceAsExactlyAsAPlainSum) {
  Random random(91);
  for (int round = 0; round < 60; ++round) {
    const bool small = random.coin();
    const int out = round % 2 == 0 ? 4 : 2;
    const ConvParams p = params_3x3(small ? random.integer(1, 40) : random.integer(1, 2), random.integer(1, 40), random.integer(1, 40),
                                    random.integer(3, small ? 9 : 40), random.integer(3, small ? 9 : 40), random.integer(0, 2),
                                    random.integer(0, 2), random.integer(0, 2), random.integer(0, 2));
    const int64_t y_size = p.N * p.M * p.window.out_size();
    const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.M * p.C * 9), bias = random.vector(p.M),
               residual = random.vector(y_size);
    ConvEpilogue e;
    if (random.coin()) e.bias = bias.data();
    if (random.coin()) e.residual = residual.data();
    if (random.coin()) e.activation = Unary::relu;
    auto expected = test::reference_conv<float, double>(p, x, weights);
    double largest = 1;
    for (int64_t i = 0; i < y_size; ++i) {
      if (e.bias) expected[i] += bias[i / p.window.out_size() % p.M];
      if (e.residual) expected[i] += residual[i];
      if (e.activation == Unary::relu) expected[i] = std::max(expected[i], 0.0);
      largest = std::max(largest, std::abs(expected[i]));
    }
    const Packed packed(p, out, weights);
    const auto inner = channels_last(x, p.N, p.C), added = channels_last(residual, p.N, p.M);
    expected = channels_last(expected, p.N, p.M);
    if (e.residual) e.residual = added.data();
    std::vector<float> first;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<char> scratch(winograd_scratch_bytes(p, out, threads) + 64);
      std::vector<float> y(y_size, 77);
      winograd(p, out, inner.data(), weights.data(), packed.data.data(), y.data(), e, scratch.data(), threads, &pool);
      if (first.empty()) first = y;
      ASSERT_EQ(first, y) << "other bits with " << threads << " threads";
      for (int64_t i = 0; i < y_size; ++i) ASSERT_NEAR(y[i], expected[i], 3e-6 * largest);
    }
  }
}

// A single sum over 512 channels would have an error of 2e-6 of the largest output, so sums are computed in parts.
TEST(Winograd, ManyChannelsAreAddedUpInParts) {
  Random random(93);
  for (int64_t channels : {129, 300, 512})
    for (int out : {4, 2}) {
      const ConvParams p = params_3x3(1, channels, 20, 12, 12, 1, 1, 1, 1);
      auto x = random.vector(p.C * p.window.in_size());
      for (float& value : x) value = std::max(value, 0.0F);
      const auto weights = random.vector(p.M * p.C * 9);
      auto expected = channels_last(test::reference_conv<float, double>(p, x, weights), p.N, p.M);
      double largest = 1;
      for (double value : expected) largest = std::max(largest, std::abs(value));
      const Packed packed(p, out, weights);
      std::vector<char> scratch(winograd_scratch_bytes(p, out, 1) + 64);
      std::vector<float> y(expected.size());
      const auto inner = channels_last(x, p.N, p.C);
      winograd(p, out, inner.data(), weights.data(), packed.data.data(), y.data(), {}, scratch.data(), 1, nullptr);
      double worst = 0;
      for (size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(y[i] - expected[i]) / largest);
      EXPECT_LT(worst, 1.5e-6) << channels;
    }
}

TEST(Winograd, InfinityAndNaNStayWhereTheyBelong) {
  for (int out : {4, 2}) {
    Random random(92);
    const ConvParams p = params_3x3(1, 20, 18, 12, 13, 1, 1, 1, 1);
    auto x = random.vector(p.C * p.window.in_size());
    auto weights = random.vector(p.M * p.C * 9);
    x[5 * 13 + 6] = INFINITY;
    x[3 * 12 * 13 + 11 * 13 + 12] = NAN;
    const Packed packed(p, out, weights);
    std::vector<char> scratch(winograd_scratch_bytes(p, out, 1) + 64);
    std::vector<float> y(p.M * p.window.out_size());
    const auto inner = channels_last(x, p.N, p.C);
    winograd(p, out, inner.data(), weights.data(), packed.data.data(), y.data(), {}, scratch.data(), 1, nullptr);
    test::expect_near(y, channels_last(test::reference_conv<float, double>(p, x, weights), p.N, p.M), 2e-5);
  }
}

TEST(Winograd, OneOfManySmallImagesMayHoldAnInfinity) {
  for (int out : {4, 2}) {
    Random random(95);
    const ConvParams p = params_3x3(20, 17, 18, 7, 5, 1, 1, 1, 1);
    auto x = random.vector(p.N * p.C * p.window.in_size());
    const auto weights = random.vector(p.M * p.C * 9);
    x[(13 * 17 + 4) * 35 + 20] = -INFINITY;
    const Packed packed(p, out, weights);
    std::vector<char> scratch(winograd_scratch_bytes(p, out, 1) + 64);
    std::vector<float> y(p.N * p.M * p.window.out_size());
    const auto inner = channels_last(x, p.N, p.C);
    winograd(p, out, inner.data(), weights.data(), packed.data.data(), y.data(), {}, scratch.data(), 1, nullptr);
    test::expect_near(y, channels_last(test::reference_conv<float, double>(p, x, weights), p.N, p.M), 2e-5);
  }
}

TEST(Winograd, IsChosenForLargeMapsAndNotForOtherWindows) {
  EXPECT_EQ(4, winograd_choice(params_3x3(1, 64, 64, 56, 56, 1, 1, 1, 1)));
  EXPECT_EQ(0, winograd_choice(params_3x3(1, 3, 64, 224, 224, 1, 1, 1, 1)));
  ConvParams p = params_3x3(1, 64, 64, 56, 56, 1, 1, 1, 1);
  p.window.stride[1] = 2;
  EXPECT_EQ(0, winograd_choice(p));
  p = params_3x3(1, 64, 64, 56, 56, 1, 1, 1, 1);
  p.window.dilation[2] = 2;
  EXPECT_EQ(0, winograd_choice(p));
}

TEST(Winograd, IsChosenWithinTheBoundsThatAreGiven) {
  const ConvParams p = params_3x3(1, 64, 64, 56, 56, 1, 1, 1, 1);
  auto side = [&](double expansion) { return winograd_choice(p, {.max_weight_expansion = expansion}); };
  EXPECT_EQ(4, side(4));
  EXPECT_EQ(2, side(3.99));  // weights grow by 36 / 9 with tiles of 4, and by 16 / 9 with tiles of 2
  EXPECT_EQ(2, side(1.78));
  EXPECT_EQ(0, side(1.77));
  EXPECT_EQ(0, side(1));
  EXPECT_EQ(NhwcMethod::direct, nhwc_method(p, {.max_weight_expansion = 1}));
  // If transforms are slow, Winograd's method is never chosen; if direct products are slow, it is always chosen.
  EXPECT_EQ(0, winograd_choice(p, {.rates = {.transforms = 10}}));
  const ConvParams small = params_3x3(1, 16, 16, 5, 5, 1, 1, 1, 1);
  EXPECT_NE(0, winograd_choice(small, {.rates = {.direct = 1, .winograd = 1}}));
}

TEST(TransposePlane, MovesEveryElementAndNoOther) {
  Random random(94);
  for (int round = 0; round < 200; ++round) {
    const int64_t rows = random.integer(0, 90), columns = random.integer(0, 90), src_stride = columns + random.integer(0, 5),
                  dst_stride = rows + random.integer(0, 5);
    const auto src = random.vector(rows * src_stride);
    std::vector<float> dst(columns * dst_stride, 7);
    transpose_plane(rows, columns, src.data(), src_stride, dst.data(), dst_stride);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < dst_stride; ++r) ASSERT_EQ(dst[c * dst_stride + r], r < rows ? src[r * src_stride + c] : 7);
    }
  }
}

TEST(TransposePlane, AFewRowsBecomeDenseColumns) {
  Random random(95);
  for (int64_t rows = 1; rows <= 10; ++rows) {
    for (int64_t columns = 0; columns < 70; ++columns) {
      const int64_t src_stride = columns + random.integer(0, 5);
      const auto src = random.vector(rows * src_stride);
      std::vector<float> dst(static_cast<size_t>(rows * columns + 1), 7);
      transpose_plane(rows, columns, src.data(), src_stride, dst.data(), rows);
      for (int64_t i = 0; i < rows * columns; ++i)
        ASSERT_EQ(dst[i], src[i % rows * src_stride + i / rows]) << rows << " x " << columns << " at " << i;
      ASSERT_EQ(dst.back(), 7);
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
