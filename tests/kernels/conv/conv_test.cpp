#include "kernels/conv/conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/conv/col2im.h"
#include "tests/kernels/conv/reference.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

using test::Random;

double activated(const ConvEpilogue& e, double v) {
  if (e.activation == Unary::relu) return std::max(v, 0.0);
  if (e.activation == Unary::clip) return std::min(std::max(v, double(e.a)), double(e.b));
  if (e.activation == Unary::sigmoid) return 1 / (1 + std::exp(-v));
  return v;
}

void check(Random& random, const ConvParams& p) {
  const int64_t y_size = p.N * p.M * p.window.out_size();
  const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.M * (p.C / p.group) * p.window.kernel_size()),
             bias = random.vector(p.M), residual = random.vector(y_size);
  ConvEpilogue e;
  if (random.coin()) e.bias = bias.data();
  if (random.coin()) e.residual = residual.data();
  const Unary activations[] = {Unary::none, Unary::relu, Unary::clip, Unary::sigmoid};
  e.activation = activations[random.integer(0, 3)];
  e.a = -0.5f, e.b = 0.5f;
  auto expected = test::reference_conv<float, double>(p, x, weights);
  for (int64_t i = 0; i < y_size; ++i) {
    double v = expected[i];
    if (e.bias) v += bias[i / p.window.out_size() % p.M];
    if (e.residual) v += residual[i];
    expected[i] = activated(e, v);
  }
  for (int threads : {1, 3}) {
    std::vector<char> scratch(conv_scratch_bytes(p, threads) + 64);
    std::vector<float> y(y_size, 77);
    conv(p, x.data(), weights.data(), y.data(), e, scratch.data(), threads, nullptr);
    test::expect_near(y, expected, 2e-5);
    if (e.residual) {  // the residual may be y itself
      y = residual;
      ConvEpilogue in_place = e;
      in_place.residual = y.data();
      conv(p, x.data(), weights.data(), y.data(), in_place, scratch.data(), threads, nullptr);
      test::expect_near(y, expected, 2e-5);
    }
  }
}

TEST(Conv, EqualsTheReferenceForRandomWindows) {
  Random random(31);
  for (int round = 0; round < 200; ++round) {
    ConvParams p;
    p.N = random.integer(1, 2);
    p.group = random.integer(1, 3);
    p.C = p.group * random.integer(1, 4);
    p.M = p.group * random.integer(1, 5);
    const int rank = static_cast<int>(random.integer(1, 3));
    p.window = test::random_window(random, rank, rank == 1 ? 200 : rank == 2 ? 24 : 8);
    check(random, p);
  }
}

TEST(Conv, PointwiseAndLargeChannelCounts) {
  Random random(32);
  for (int64_t in : {1, 7, 14, 57}) {
    ConvParams p{.N = 2, .C = 33, .M = 70};
    const int64_t dims[] = {in, in}, one[] = {1, 1};
    p.window = make_window(dims, dims, one, {}, {}, {});
    check(random, p);
    ConvParams q{.N = 1, .C = 17, .M = 13};
    const int64_t three[] = {3, 3}, pads[] = {1, 1, 1, 1};
    q.window = make_window(dims, dims, three, {}, pads, {});
    check(random, q);
  }
}

TEST(Conv, DepthwiseWithMultiplierAndStrides) {
  Random random(33);
  for (int round = 0; round < 100; ++round) {
    ConvParams p;
    p.N = random.integer(1, 2);
    p.C = p.group = random.integer(1, 5);
    p.M = p.C * random.integer(1, 3);
    p.window = test::random_window(random, static_cast<int>(random.integer(1, 3)), 20);
    check(random, p);
  }
}

TEST(Conv, EmptyBatchesAreFine) {
  ConvParams p{.N = 0, .C = 3, .M = 4};
  const int64_t dims[] = {5, 5}, out[] = {3, 3}, three[] = {3, 3};
  p.window = make_window(dims, out, three, {}, {}, {});
  conv(p, nullptr, nullptr, nullptr, {}, nullptr, 1, nullptr);
  conv_transpose(p, nullptr, nullptr, nullptr, {}, nullptr, 1, nullptr);
}

TEST(Conv, GroupsThatDoNotDivideAreRefused) {
  EXPECT_THROW(check_conv({.N = 1, .C = 4, .M = 3, .group = 2}), Error);
  EXPECT_THROW(check_conv({.N = 1, .C = 3, .M = 4, .group = 2}), Error);
  const int64_t four[] = {1, 1, 1, 1};
  EXPECT_THROW(make_window(four, four, four, {}, {}, {}), Error);
}

TEST(ConvTranspose, IsTheGradientOfTheConvolution) {
  Random random(34);
  for (int round = 0; round < 150; ++round) {
    ConvParams p;
    p.N = random.integer(1, 2);
    p.group = random.integer(1, 3);
    p.C = p.group * random.integer(1, 4);
    p.M = p.group * random.integer(1, 4);
    const int rank = static_cast<int>(random.integer(1, 3));
    p.window = test::random_window(random, rank, rank == 1 ? 60 : rank == 2 ? 16 : 7);
    const Window& w = p.window;
    const int64_t channels = p.C / p.group, rows = p.M / p.group, y_size = p.N * p.M * w.in_size();
    const auto x = random.vector(p.N * p.C * w.out_size()), weights = random.vector(p.C * rows * w.kernel_size()),
               bias = random.vector(p.M), residual = random.vector(y_size);
    ConvEpilogue e;
    if (random.coin()) e.bias = bias.data();
    if (random.coin()) e.residual = residual.data();
    if (random.coin()) e.activation = Unary::relu;
    std::vector<double> expected(y_size);
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t c = 0; c < p.C; ++c) {
        for (int64_t j = 0; j < rows; ++j) {
          const int64_t m = c / channels * rows + j;
          test::for_each_tap(w, [&](int64_t o, int64_t k, int64_t i) {
            if (i >= 0)
              expected[(n * p.M + m) * w.in_size() + i] +=
                  double(x[(n * p.C + c) * w.out_size() + o]) * weights[(c * rows + j) * w.kernel_size() + k];
          });
        }
      }
    }
    for (int64_t i = 0; i < y_size; ++i) {
      if (e.bias) expected[i] += bias[i / w.in_size() % p.M];
      if (e.residual) expected[i] += residual[i];
      expected[i] = activated(e, expected[i]);
    }
    std::vector<char> scratch(conv_transpose_scratch_bytes(p, 2) + 64);
    std::vector<float> y(y_size, 77);
    conv_transpose(p, x.data(), weights.data(), y.data(), e, scratch.data(), 2, nullptr);
    test::expect_near(y, expected, 2e-5);
  }
}

// The rows are longer than a block of sums. Some strides have special vector code, and others do not.
TEST(ConvTranspose, LongRowsOfEveryStride) {
  Random random(35);
  for (const int64_t stride : {1, 2, 3, 5})
    for (const int64_t kernel : {1, 2, 4})
      for (const int64_t length : {7, 1100, 2300}) {
        const int64_t out = (length + 2 - kernel) / stride + 1;
        const int64_t in[] = {length}, outs[] = {out}, kernels[] = {kernel}, strides[] = {stride}, pads[] = {1, 1};
        const Window w = make_window(in, outs, kernels, strides, pads, {});
        const auto columns = random.vector(kernel * out);
        std::vector<float> plane(length, 77), expected(length, 0.5f);
        test::for_each_tap(w, [&](int64_t o, int64_t k, int64_t i) {
          if (i >= 0) expected[i] += columns[k * out + o];
        });
        col2im(w, columns.data(), 0.5f, plane.data());
        test::expect_near(plane, expected, 1e-6);
      }
}

// The output has as many pixels as the input has columns, so a kernel might take it for the input itself. But the stride skips pixels.
TEST(Conv, StridedOneByOneIsNotTakenForTheImage) {
  const int64_t in[] = {4, 64}, out[] = {2, 32}, one[] = {1, 1}, two[] = {2, 2};
  ConvParams p{.N = 12, .C = 3, .M = 2, .window = make_window(in, out, one, two, {}, {})};
  Random random(67);
  const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.C * p.M);
  const auto expected = test::reference_conv<float, double>(p, x, weights);
  std::vector<float> y(expected.size());
  std::vector<char> scratch(conv_scratch_bytes(p, 1) + 64);
  conv(p, x.data(), weights.data(), y.data(), {}, scratch.data(), 1, nullptr);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5) << "element " << i;
}

}  // namespace
}  // namespace treadle::kernels
