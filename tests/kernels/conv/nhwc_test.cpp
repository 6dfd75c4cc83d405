#include "kernels/conv/nhwc.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/conv/conv_depthwise.h"
#include "kernels/conv/pool_nhwc.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::channels_last;
using test::Random;

constexpr float kUntouched = 77;

/// Returns x as part of a wider image with `step` channels, at channels `first` to `first` + `channels`. The other channels are NaN.
std::vector<float> part_of(const std::vector<float>& x, int64_t channels, int64_t step, int64_t first) {
  std::vector<float> whole(x.size() / static_cast<size_t>(channels) * static_cast<size_t>(step), std::nanf(""));
  for (size_t i = 0; i < x.size(); ++i)
    whole[i / static_cast<size_t>(channels) * static_cast<size_t>(step) + static_cast<size_t>(first) + i % static_cast<size_t>(channels)] =
        x[i];
  return whole;
}

/// Checks that `whole` contains y from channel `first` on, and that its other channels have not changed.
void expect_part(const std::vector<float>& whole, const std::vector<float>& y, int64_t channels, int64_t step, int64_t first) {
  for (int64_t i = 0; i < static_cast<int64_t>(whole.size()); ++i) {
    const int64_t c = i % step - first;
    const float expected = c < 0 || c >= channels ? kUntouched : y[static_cast<size_t>(i / step * channels + c)];
    ASSERT_EQ(whole[static_cast<size_t>(i)], expected) << "element " << i << " of rows of " << step;
  }
}

/// Checks one method, with 1 and 3 threads, against the definition in double. Then checks that it gives the same bits if x and y are parts
/// of wider images, and if x has channels first.
/// @param tolerance  relative to the largest output
void check(const ConvParams& p, NhwcMethod method, Random& random, Unary activation, double tolerance = 3e-6) {
  const int64_t y_size = p.N * p.M * p.window.out_size();
  const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.M * (p.C / p.group) * p.window.kernel_size()),
             bias = random.vector(p.M), residual = random.vector(y_size);
  ConvEpilogue e;
  e.activation = activation;
  e.a = -0.5F, e.b = 0.75F;
  if (random.coin()) e.bias = bias.data();
  if (random.coin()) e.residual = residual.data();
  auto expected = channels_last(test::reference_conv<float, double>(p, x, weights), p.N, p.M);
  double largest = 1;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  test::apply_epilogue(e, p.M, expected);
  const auto inner = channels_last(x, p.N, p.C);
  std::vector<float> packed(nhwc_packed_size(p, method)), first;
  nhwc_pack(p, method, weights.data(), packed.data());
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<char> scratch(nhwc_scratch_bytes(p, method, threads) + 64);
    std::vector<float> y(y_size, 77);
    nhwc_conv(p, method, inner.data(), weights.data(), packed.data(), y.data(), e, scratch.data(), threads, &pool);
    for (int64_t i = 0; i < y_size; ++i) ASSERT_NEAR(y[i], expected[i], tolerance * largest) << "element " << i;
    if (first.empty()) first = y;
    ASSERT_EQ(first, y) << "other bits with " << threads << " threads";
    if (y_size == 0) continue;
    ConvParams parts = p;
    parts.x_pixel = p.C + random.integer(0, 20), parts.y_pixel = p.M + random.integer(0, 20);
    const int64_t x_first = random.integer(0, parts.x_pixel - p.C), y_first = random.integer(0, parts.y_pixel - p.M);
    const auto wide = part_of(inner, p.C, parts.x_pixel, x_first);
    std::vector<float> whole(static_cast<size_t>(y_size / p.M * parts.y_pixel), kUntouched);
    scratch.resize(nhwc_scratch_bytes(parts, method, threads) + 64);
    nhwc_conv(parts, method, wide.data() + x_first, weights.data(), packed.data(), whole.data() + y_first, e, scratch.data(), threads,
              &pool);
    expect_part(whole, first, p.M, parts.y_pixel, y_first);
    if (method != NhwcMethod::direct) continue;
    ConvParams planes = p;
    planes.x_planes = true;
    scratch.resize(nhwc_scratch_bytes(planes, method, threads) + 64);
    nhwc_conv(planes, method, x.data(), weights.data(), packed.data(), y.data(), e, scratch.data(), threads, &pool);
    ASSERT_EQ(first, y) << "other bits of an image in planes";
  }
}

constexpr Unary kActivations[] = {Unary::none, Unary::clip, Unary::sigmoid};

TEST(NhwcConv, DirectEqualsTheDefinition) {
  Random random(51);
  for (int round = 0; round < 300; ++round) {
    ConvParams p;
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 2)), random.coin() ? 8 : 25);
    p.group = random.coin() ? 1 : random.integer(1, 4);
    p.N = random.integer(0, 2), p.C = p.group * random.integer(1, 20), p.M = p.group * random.integer(1, random.coin() ? 20 : 150);
    check(p, NhwcMethod::direct, random, kActivations[round % 3]);
  }
}

// Packed weights that are too large for the caches are used in parts: a few segments of the window at a time, or parts of a segment.
TEST(NhwcConv, DeepWindowsAreSummedInParts) {
  Random random(58);
  for (const auto& [channels, kernel, dilation] :
       {std::array<int64_t, 3>{700, 3, 1}, {2600, 1, 1}, {500, 3, 2}, {1300, 2, 2}, {90, 5, 1}, {1025, 2, 1}}) {
    ConvParams p{.N = 1, .C = channels, .M = random.integer(60, 140)};
    const int64_t in[] = {random.integer(1, 9), random.integer(1, 9)}, k[] = {kernel, kernel}, stride[] = {1, random.integer(1, 2)},
                  dilations[] = {dilation, dilation}, pad = (kernel - 1) * dilation, pads[] = {pad, pad, pad, pad};
    const int64_t out[] = {pool_out_extent(in[0], kernel, stride[0], dilation, pad, pad, false),
                           pool_out_extent(in[1], kernel, stride[1], dilation, pad, pad, false)};
    p.window = make_window(in, out, k, stride, pads, dilations);
    for (Unary activation : kActivations) check(p, NhwcMethod::direct, random, activation);
  }
}

// With few filters, several channels share a vector: four or two, or only one if the number of channels is odd.
TEST(NhwcConv, FewFiltersFoldTheChannels) {
  Random random(59);
  for (const auto& [channels, filters, kernel] :
       {std::array<int64_t, 3>{24, 8, 3}, {24, 5, 3}, {24, 4, 3}, {20, 1, 1}, {10, 3, 3}, {7, 4, 3}, {9002, 7, 1}, {9004, 3, 1}}) {
    for (int64_t groups : {1, 3}) {
      ConvParams p{.N = 1, .C = channels * groups, .M = filters * groups, .group = groups};
      const int64_t in[] = {random.integer(3, 9), random.integer(3, 30)}, k[] = {kernel, kernel}, stride[] = {1, random.integer(1, 2)},
                    pad = kernel / 2, pads[] = {pad, pad, pad, pad};
      const int64_t out[] = {pool_out_extent(in[0], kernel, stride[0], 1, pad, pad, false),
                             pool_out_extent(in[1], kernel, stride[1], 1, pad, pad, false)};
      p.window = make_window(in, out, k, stride, pads, {});
      // Without vector instructions, nine thousand products are added up in only two sums, so their rounding errors are larger.
      const double tolerance = channels > 1000 ? 1e-5 : 3e-6;
      for (Unary activation : kActivations) check(p, NhwcMethod::direct, random, activation, tolerance);
    }
  }
}

/// The result must equal that of the two convolutions one after the other, bit for bit.
TEST(ConvDepthwise, EqualsTheTwoOneAfterTheOther) {
  Random random(59);
  for (int round = 0; round < 300; ++round) {
    const bool large = round % 5 == 0;
    const bool pointwise = random.coin();
    ConvParams first{.N = random.integer(0, 2), .C = random.integer(1, pointwise ? 30 : 4), .M = random.integer(2, large ? 100 : 40)};
    // Wide rows are split into strips.
    const int64_t extent[] = {random.integer(1, large ? 20 : 9), random.integer(1, large ? 300 : 9)}, one[] = {1, 1};
    first.window = pointwise ? make_window(extent, extent, one, {}, {}, {}) : test::random_window_over(random, extent);
    ConvParams second{.N = first.N, .C = first.M, .M = first.M, .group = first.M};
    second.window = test::random_window_over(random, std::span(first.window.out).subspan(1));
    const auto x = random.vector(first.N * first.C * first.window.in_size()),
               w = random.vector(first.C * first.M * first.window.kernel_size()), b = random.vector(first.M),
               d = random.vector(second.M * second.window.kernel_size()), e = random.vector(second.M),
               residual = random.vector(second.N * second.M * second.window.out_size());
    std::vector<float> packed(nhwc_packed_size(first, NhwcMethod::direct)), depthwise(nhwc_packed_size(second, NhwcMethod::depthwise));
    nhwc_pack(first, NhwcMethod::direct, w.data(), packed.data());
    nhwc_pack(second, NhwcMethod::depthwise, d.data(), depthwise.data());
    ConvStage inner{packed.data(), {}}, outer{depthwise.data(), {}};
    inner.epilogue.activation = kActivations[round % 3], outer.epilogue.activation = kActivations[round / 3 % 3];
    inner.epilogue.a = outer.epilogue.a = -0.5F, inner.epilogue.b = outer.epilogue.b = 0.75F;
    if (random.coin()) inner.epilogue.bias = b.data();
    if (random.coin()) outer.epilogue.bias = e.data();
    if (random.coin()) outer.epilogue.residual = residual.data();
    std::vector<float> between(first.N * first.M * first.window.out_size()), expected(residual.size(), 7), y(residual.size());
    std::vector<char> room(nhwc_scratch_bytes(first, NhwcMethod::direct, 1) + 64);
    nhwc_conv(first, NhwcMethod::direct, x.data(), w.data(), packed.data(), between.data(), inner.epilogue, room.data(), 1, nullptr);
    nhwc_conv(second, NhwcMethod::depthwise, between.data(), d.data(), depthwise.data(), expected.data(), outer.epilogue, nullptr, 1,
              nullptr);
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      const ConvDepthwise params{first, second, threads};
      std::vector<char> scratch(conv_depthwise_scratch_bytes(params) + 64);
      y.assign(y.size(), 7);
      conv_depthwise(params, x.data(), inner, outer, y.data(), scratch.data(), &pool);
      ASSERT_EQ(y, expected) << threads << " threads, round " << round;
      if (y.empty()) continue;
      ConvDepthwise parts = params;
      parts.first.x_pixel = first.C + 5, parts.depthwise.y_pixel = second.M + 3;
      const auto wide = part_of(x, first.C, first.C + 5, 2);
      scratch.resize(conv_depthwise_scratch_bytes(parts) + 64);
      std::vector<float> whole(y.size() / static_cast<size_t>(second.M) * static_cast<size_t>(second.M + 3), kUntouched);
      conv_depthwise(parts, wide.data() + 2, inner, outer, whole.data() + 1, scratch.data(), &pool);
      expect_part(whole, expected, second.M, second.M + 3, 1);
      ConvDepthwise planes = params;
      planes.first.x_planes = true;
      scratch.resize(conv_depthwise_scratch_bytes(planes) + 64);
      const auto outermost = channels_last(x, first.N, first.window.in_size());
      conv_depthwise(planes, outermost.data(), inner, outer, y.data(), scratch.data(), &pool);
      ASSERT_EQ(y, expected) << "of an image in planes, round " << round;
    }
  }
}

TEST(NhwcConv, WeightsArePackedFromAnyAddressAndUnpacked) {
  Random random(57);
  for (int round = 0; round < 100; ++round) {
    ConvParams p;
    p.window = test::random_window(random, 2, 8);
    const bool depthwise = random.coin();
    p.group = depthwise ? random.integer(2, 70) : random.integer(1, 3);
    p.N = 1, p.C = p.group * (depthwise ? 1 : random.integer(1, 20)), p.M = depthwise ? p.C : p.group * random.integer(1, 150);
    const NhwcMethod method = depthwise ? NhwcMethod::depthwise : NhwcMethod::direct;
    const auto weights = random.vector(p.M * (p.C / p.group) * p.window.kernel_size());
    std::vector<float> packed(nhwc_packed_size(p, method)), again(packed.size()), unpacked(weights.size());
    nhwc_pack(p, method, weights.data(), packed.data());
    nhwc_unpack(p, method, packed.data(), unpacked.data());
    ASSERT_EQ(unpacked, weights);
    std::vector<char> odd(weights.size() * sizeof(float) + 1);
    std::memcpy(odd.data() + 1, weights.data(), weights.size() * sizeof(float));
    nhwc_pack(p, method, reinterpret_cast<const float*>(odd.data() + 1), again.data());
    ASSERT_EQ(again, packed);
  }
}

TEST(NhwcConv, WinogradsWeightsArePackedFromAnyAddress) {
  Random random(58);
  for (int round = 0; round < 30; ++round) {
    ConvParams p{.N = 1, .C = random.integer(1, 40), .M = random.integer(1, 150)};
    const int64_t extent[] = {8, 8}, three[] = {3, 3};
    p.window = make_window(extent, extent, three, {}, std::vector<int64_t>{1, 1, 1, 1}, {});
    const NhwcMethod method = random.coin() ? NhwcMethod::winograd2 : NhwcMethod::winograd4;
    const auto weights = random.vector(p.M * p.C * 9);
    std::vector<float> packed(nhwc_packed_size(p, method), NAN), again(packed.size(), NAN);
    nhwc_pack(p, method, weights.data(), packed.data());
    std::vector<char> odd(weights.size() * sizeof(float) + 1);
    std::memcpy(odd.data() + 1, weights.data(), weights.size() * sizeof(float));
    nhwc_pack(p, method, reinterpret_cast<const float*>(odd.data() + 1), again.data());
    ASSERT_EQ(again, packed);  // this also shows that `again` has no NaN: every element was written
  }
}

TEST(NhwcConv, PointwiseEqualsTheDefinition) {
  Random random(52);
  for (int round = 0; round < 60; ++round) {
    ConvParams p{.N = random.integer(1, 2), .C = random.integer(1, 90), .M = random.integer(1, 300)};
    const int64_t extent[] = {random.integer(1, 40), random.integer(1, 40)}, one[] = {1, 1};
    p.window = make_window(extent, extent, one, {}, {}, {});
    check(p, NhwcMethod::direct, random, kActivations[round % 3]);
  }
}

TEST(NhwcConv, DepthwiseEqualsTheDefinition) {
  Random random(53);
  for (int round = 0; round < 300; ++round) {
    ConvParams p;
    // Windows of 3, 5 and 7 taps have special code, with and without borders.
    const int64_t extents[] = {random.integer(1, 12), random.integer(1, 40)};
    p.window = random.coin() ? test::random_window_over(random, extents)
                             : test::random_window(random, static_cast<int>(random.integer(1, 2)), random.coin() ? 8 : 30);
    p.N = random.integer(1, 2), p.C = p.M = p.group = random.integer(2, random.coin() ? 20 : 100);
    check(p, NhwcMethod::depthwise, random, kActivations[round % 3]);
  }
}

TEST(NhwcConv, TransposedWithoutOverlapIsTheInverseOfThePlacement) {
  Random random(54);
  for (int round = 0; round < 30; ++round) {
    const int64_t high = random.integer(1, 9), wide = random.integer(1, 9), kh = random.integer(1, 3), kw = random.integer(1, 3);
    ConvParams p{.N = random.integer(1, 2), .C = random.integer(1, 40), .M = random.integer(1, 80)};
    const int64_t in[] = {high * kh, wide * kw}, out[] = {high, wide}, kernel[] = {kh, kw};
    p.window = make_window(in, out, kernel, kernel, {}, {});
    ASSERT_TRUE(nhwc_transposed_fits(p));
    const auto x = random.vector(p.N * high * wide * p.C), weights = random.vector(p.C * p.M * kh * kw), bias = random.vector(p.M);
    std::vector<float> packed(nhwc_transposed_packed_size(p)), y(p.N * high * kh * wide * kw * p.M);
    nhwc_transposed_pack(p, weights.data(), packed.data());
    nhwc_transposed(p, x.data(), packed.data(), y.data(), {.bias = bias.data(), .activation = Unary::relu}, nullptr);
    for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
      const int64_t m = i % p.M, column = i / p.M % (wide * kw), row = i / p.M / (wide * kw) % (high * kh),
                    n = i / p.M / (wide * kw) / (high * kh);
      double sum = bias[m];
      for (int64_t c = 0; c < p.C; ++c)
        sum +=
            double{x[((n * high + row / kh) * wide + column / kw) * p.C + c]} * weights[((c * p.M + m) * kh + row % kh) * kw + column % kw];
      ASSERT_NEAR(y[i], std::max(sum, 0.0), 2e-5);
    }
    const auto x_whole = part_of(x, p.C, p.C + 7, 3);
    std::vector<float> whole(y.size() / static_cast<size_t>(p.M) * static_cast<size_t>(p.M + 2), kUntouched);
    p.x_pixel = p.C + 7, p.y_pixel = p.M + 2;
    nhwc_transposed(p, x_whole.data() + 3, packed.data(), whole.data() + 2, {.bias = bias.data(), .activation = Unary::relu}, nullptr);
    expect_part(whole, y, p.M, p.M + 2, 2);
  }
}

TEST(NhwcPool, EqualsThePoolOfPlanes) {
  Random random(55);
  for (int round = 0; round < 100; ++round) {
    const Window w = test::random_window(random, 2, 20, random.coin());
    const int64_t N = random.integer(1, 2), C = random.integer(1, 90);
    auto x = random.vector(N * C * w.in_size());
    const bool include_pad = random.coin();
    std::vector<float> y(N * C * w.out_size()), planes(y.size());
    const auto inner = channels_last(x, N, C);
    pool_nhwc(NhwcPool::max, w, N, C, false, {C, C}, inner.data(), y.data(), nullptr);
    max_pool(w, N * C, x.data(), planes.data(), nullptr, false, nullptr);
    ASSERT_EQ(y, channels_last(planes, N, C));
    pool_nhwc(NhwcPool::average, w, N, C, include_pad, {C, C}, inner.data(), y.data(), nullptr);
    average_pool(w, N * C, x.data(), planes.data(), include_pad, nullptr);
    const auto expected = channels_last(planes, N, C);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5);
  }
}

TEST(NhwcPool, MeanAndScalingEqualTheirDefinition) {
  Random random(56);
  for (int round = 0; round < 40; ++round) {
    const int64_t N = random.integer(1, 3), pixels = random.integer(1, 60), C = random.integer(1, 300);
    const auto x = random.vector(N * pixels * C), scale = random.vector(C), shift = random.vector(C);
    std::vector<float> mean(N * C), scaled(x.size());
    const int64_t line = random.integer(1, 9);
    std::vector<std::byte> scratch(mean_nhwc_scratch_bytes(N, pixels, line, C));
    mean_nhwc(N, pixels, line, C, C, x.data(), mean.data(), scratch.data(), nullptr);
    affine_nhwc(N * pixels, C, {C, C}, x.data(), scale.data(), shift.data(), 0.0F, scaled.data(), nullptr);
    for (int64_t i = 0; i < N * C; ++i) {
      double sum = 0;
      for (int64_t p = 0; p < pixels; ++p) sum += x[(i / C * pixels + p) * C + i % C];
      ASSERT_NEAR(mean[i], sum / static_cast<double>(pixels), 1e-6);
    }
    for (int64_t i = 0; i < N * pixels * C; ++i) ASSERT_NEAR(scaled[i], std::max(0.0F, x[i] * scale[i % C] + shift[i % C]), 1e-6);
  }
}

TEST(NhwcPool, NaNWinsAMaximum) {
  const int64_t extent[] = {1, 4}, out[] = {1, 2}, kernel[] = {1, 3};
  const Window w = make_window(extent, out, kernel, {}, {}, {});
  for (int64_t at = 0; at < 4; ++at) {
    float x[] = {1, 2, 3, 4}, y[2];
    x[at] = NAN;
    pool_nhwc(NhwcPool::max, w, 1, 1, false, {1, 1}, x, y, nullptr);
    EXPECT_EQ(std::isnan(y[0]), at < 3);
    EXPECT_EQ(std::isnan(y[1]), at > 0);
  }
}

}  // namespace
}  // namespace treadle::kernels
