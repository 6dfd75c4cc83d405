#include "kernels/conv/conv_gradient_nhwc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/threads/thread_pool.h"
#include "kernels/conv/pool_gradient_nhwc.h"
#include "kernels/conv/winograd_gradient.h"
#include "tests/kernels/bf16_reference.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::Random;

// The expected gradients dx and dw of y = conv(x), computed from dy in double. Images have channels last.
struct Gradients {
  std::vector<double> dx, dw;
  Gradients(const ConvParams& p, const std::vector<float>& x, const std::vector<float>& weights, const std::vector<float>& dy)
      : dx(x.size()), dw(weights.size()) {
    const Window& w = p.window;
    const int64_t channels = p.C / p.group, filters = p.M / p.group;
    for (int64_t n = 0; n < p.N; ++n) {
      test::for_each_tap(w, [&](int64_t o, int64_t k, int64_t i) {
        for (int64_t m = 0; m < p.M && i >= 0; ++m) {
          const double gradient = double(dy[(n * w.out_size() + o) * p.M + m]);
          for (int64_t c = 0; c < channels; ++c) {
            const size_t at = (n * w.in_size() + i) * p.C + m / filters * channels + c, weight = (m * channels + c) * w.kernel_size() + k;
            dx[at] += gradient * double(weights[weight]);
            dw[weight] += gradient * double(x[at]);
          }
        }
      });
    }
  }
};

// Scratch memory that is aligned as in a run, and filled with NaN.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : memory_(bytes / sizeof(float) + 32, std::numeric_limits<float>::quiet_NaN()) {}
  void* data() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) & ~uintptr_t{63}); }

 private:
  std::vector<float> memory_;
};

// The error of a float32 sum depends on its largest terms, however small the sum itself is. So errors are compared with the largest sum.
void expect_near_the_largest(const std::vector<float>& actual, const std::vector<double>& expected) {
  constexpr double kTolerance = 4e-6;
  double largest = 1, worst = 0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << "at " << i;
    worst = std::max(worst, std::abs(double(actual[i]) - expected[i]));
  }
  EXPECT_LE(worst, kTolerance * largest) << "where the largest of all is " << largest;
}

void check(Random& random, const ConvParams& p, Bf16Choice bf16 = {}, const ConvChoice& choice = {}) {
  // The numbers can be represented in bfloat16, so the result is as exact as that of float32.
  auto numbers = [&](int64_t count) { return bf16 ? test::as_read(random.vector(count), *bf16) : random.vector(count); };
  const auto x = numbers(p.N * p.C * p.window.in_size()), weights = numbers(p.M * (p.C / p.group) * p.window.kernel_size()),
             dy = numbers(p.N * p.M * p.window.out_size());
  const Gradients expected(p, x, weights, dy);
  ThreadPool threads(3);
  std::vector<float> first_dx, first_dw;
  for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
    const int count = pool ? 3 : 1;
    std::vector<float> dx(x.size(), 77), dw(weights.size(), 77);
    if (conv_grad_input_nhwc_fits(p)) {
      Scratch scratch(conv_grad_input_nhwc_scratch_bytes(p, choice, count, bf16));
      conv_grad_input_nhwc(p, choice, dy.data(), weights.data(), dx.data(), scratch.data(), count, pool, bf16);
      expect_near_the_largest(dx, expected.dx);
    }
    Scratch scratch(conv_grad_weights_nhwc_scratch_bytes(p, choice, count, bf16));
    conv_grad_weights_nhwc(p, choice, dy.data(), x.data(), dw.data(), scratch.data(), count, pool, bf16);
    expect_near_the_largest(dw, expected.dw);
    if (pool) {
      EXPECT_EQ(dx, first_dx);
      EXPECT_EQ(dw, first_dw);
    }
    first_dx = dx, first_dw = dw;
  }
}

TEST(ConvGradientNhwc, EqualsTheReferenceForRandomWindows) {
  Random random(41);
  for (int round = 0; round < 150; ++round) {
    ConvParams p;
    p.N = random.integer(1, 3);
    p.group = random.integer(0, 3) == 0 ? random.integer(2, 3) : 1;
    p.C = p.group * random.integer(1, 30);
    p.M = p.group * random.integer(1, 40);
    const int rank = static_cast<int>(random.integer(1, 2));
    p.window = test::random_window(random, rank, rank == 1 ? 60 : 14);
    const Window& w = p.window;
    SCOPED_TRACE(testing::Message() << "round " << round << ": groups " << p.group << ", channels " << p.C << " to " << p.M << ", in "
                                    << w.in[1] << " x " << w.in[2] << ", kernel " << w.kernel[1] << " x " << w.kernel[2] << ", strides "
                                    << w.stride[1] << " x " << w.stride[2] << ", dilations " << w.dilation[1] << " x " << w.dilation[2]
                                    << ", pads " << w.pad_begin[1] << " x " << w.pad_begin[2]);
    check(random, p);
    if (round % 3 == 0) check(random, p, round % 2 == 0 ? Bf16Form::one : Bf16Form::float16);
  }
}

TEST(ConvGradientNhwc, Depthwise) {
  Random random(42);
  for (int round = 0; round < 60; ++round) {
    ConvParams p;
    p.N = random.integer(1, 10);
    p.C = p.M = p.group = random.integer(2, 90);
    p.window = test::random_window_over(random, std::vector<int64_t>{random.integer(1, 15), random.integer(1, 15)});
    SCOPED_TRACE(round);
    check(random, p);
  }
}

TEST(ConvGradientNhwc, LargeLayersOfThreeByThreeAndOne) {
  Random random(43);
  for (int64_t kernel : {1, 3}) {
    for (int64_t stride : {1, 2}) {
      ConvParams p{.N = 2, .C = 70, .M = 530};
      const int64_t in[] = {14, 14}, out[] = {(14 - 1) / stride + 1, (14 - 1) / stride + 1}, window[] = {kernel, kernel},
                    strides[] = {stride, stride}, pads[] = {kernel / 2, kernel / 2, kernel / 2, kernel / 2};
      p.window = make_window(in, out, window, strides, pads, {});
      check(random, p);
    }
  }
}

TEST(ConvGradientNhwc, FewPixelsOfOneImage) {
  Random random(49);
  for (int round = 0; round < 60; ++round) {
    ConvParams p{.N = 1, .C = random.integer(1, 30), .M = random.coin() ? random.integer(192, 260) : random.integer(1, 60)};
    const int rank = static_cast<int>(random.integer(1, 2));
    p.window = test::random_window(random, rank, rank == 1 ? 60 : 8);
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << p.C << " to " << p.M << ", " << p.window.out_size() << " pixels");
    check(random, p);
    if (round % 3 == 0) check(random, p, Bf16Form::one);
  }
}

TEST(ConvGradientNhwc, FewChannels) {
  Random random(48);
  for (int round = 0; round < 80; ++round) {
    ConvParams p;
    p.N = random.integer(1, 4);
    p.C = random.integer(1, 4);
    p.M = random.integer(1, 70);
    const int rank = static_cast<int>(random.integer(1, 2));
    p.window = test::random_window(random, rank, rank == 1 ? 300 : 20);
    const Window& w = p.window;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << p.N << " of " << p.C << " to " << p.M << ", in " << w.in[1] << " x "
                                    << w.in[2] << ", kernel " << w.kernel[1] << " x " << w.kernel[2] << ", strides " << w.stride[1] << " x "
                                    << w.stride[2] << ", dilations " << w.dilation[1] << " x " << w.dilation[2] << ", pads "
                                    << w.pad_begin[1] << " x " << w.pad_begin[2]);
    check(random, p);
  }
}

ConvChoice winograd_always() {
  ConvChoice choice;
  choice.rates.direct = 1;
  return choice;
}

ConvParams three_by_three(int64_t N, int64_t C, int64_t M, int64_t high, int64_t wide, int64_t pad) {
  ConvParams p{.N = N, .C = C, .M = M};
  const int64_t in[] = {high, wide}, out[] = {high + 2 * pad - 2, wide + 2 * pad - 2}, three[] = {3, 3}, pads[] = {pad, pad, pad, pad};
  p.window = make_window(in, out, three, {}, pads, {});
  return p;
}

TEST(ConvGradientNhwc, WeightsByWinograd) {
  Random random(46);
  for (int round = 0; round < 60; ++round) {
    const ConvParams p = three_by_three(random.integer(1, 5), random.integer(16, 90), random.integer(16, 90), random.integer(3, 19),
                                        random.integer(3, 19), random.integer(0, 2));
    ASSERT_TRUE(winograd_gradient_pays(p, winograd_always()));
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << p.N << " of " << p.C << " to " << p.M << ", " << p.window.in[1] << " x "
                                    << p.window.in[2] << ", pads " << p.window.pad_begin[1]);
    check(random, p, {}, winograd_always());
  }
  // The kernel splits images, rows of an image, and filters into blocks. Each case has several blocks of one of them.
  for (const ConvParams& p :
       {three_by_three(9, 64, 64, 40, 36, 1), three_by_three(1, 96, 80, 90, 70, 1), three_by_three(2, 260, 70, 7, 7, 1)})
    check(random, p, {}, winograd_always());
}

TEST(ConvGradientNhwc, WeightsByWinogradOnlyWhereTheyMayBe) {
  const ConvParams p = three_by_three(8, 64, 64, 56, 56, 1);
  EXPECT_TRUE(winograd_gradient_pays(p, {}));
  ConvChoice tight;
  tight.max_weight_expansion = 3.9;
  EXPECT_FALSE(winograd_gradient_pays(p, tight));
  EXPECT_FALSE(winograd_gradient_pays(three_by_three(1, 512, 512, 3, 3, 1), {}));
}

TEST(ConvGradientNhwc, AnInfinityStaysWithItsChannels) {
  Random random(47);
  const ConvParams p = three_by_three(2, 20, 18, 11, 9, 1);
  auto x = random.vector(p.N * p.C * p.window.in_size());
  const auto dy = random.vector(p.N * p.M * p.window.out_size());
  x[4 * 20 + 7] = std::numeric_limits<float>::infinity();  // the element is in the first row, which is never the last row of a window
  std::vector<float> by_winograd(static_cast<size_t>(p.M * p.C * 9)), direct(by_winograd.size());
  ConvChoice never;
  never.max_weight_expansion = 1;
  for (const auto& [choice, dw] : {std::pair(winograd_always(), &by_winograd), std::pair(never, &direct)}) {
    Scratch scratch(conv_grad_weights_nhwc_scratch_bytes(p, choice, 1));
    conv_grad_weights_nhwc(p, choice, dy.data(), x.data(), dw->data(), scratch.data(), 1, nullptr);
  }
  int64_t infinite = 0;
  for (size_t i = 0; i < direct.size(); ++i) {
    ASSERT_EQ(by_winograd[i], direct[i]) << i;
    infinite += std::isinf(direct[i]) ? 1 : 0;
  }
  EXPECT_EQ(infinite, 18 * 6);
}

TEST(ConvGradientNhwc, WindowsThatBeginInsideTheImageOfTheirPhase) {
  Random random(44);
  ConvParams p{.N = 2, .C = 5, .M = 6};
  const int64_t in[] = {9, 9}, out[] = {6, 6}, window[] = {3, 3}, strides[] = {2, 2}, pads[] = {2, 2, 2, 2};
  p.window = make_window(in, out, window, strides, pads, {});
  EXPECT_TRUE(conv_grad_input_nhwc_fits(p));
  check(random, p);
}

TEST(ConvGradientNhwc, WithoutPixelsTheGradientOfWeightsIsZero) {
  ConvParams p{.N = 0, .C = 3, .M = 4};
  const int64_t dims[] = {5, 5}, out[] = {3, 3}, three[] = {3, 3};
  p.window = make_window(dims, out, three, {}, {}, {});
  std::vector<float> dw(static_cast<size_t>(3 * 4 * 9), 77);
  Scratch scratch(conv_grad_weights_nhwc_scratch_bytes(p, {}, 1));
  conv_grad_weights_nhwc(p, {}, nullptr, nullptr, dw.data(), scratch.data(), 1, nullptr);
  EXPECT_EQ(dw, std::vector<float>(dw.size()));
  conv_grad_input_nhwc(p, {}, nullptr, nullptr, nullptr, scratch.data(), 1, nullptr);
}

TEST(ConvGradientNhwc, ConvolutionsPackWeightsInTheRun) {
  Random random(45);
  for (int round = 0; round < 20; ++round) {
    ConvParams p{.N = 2, .C = random.integer(1, 40), .M = random.integer(1, 70)};
    p.window = test::random_window(random, 2, 20);
    const auto x = random.vector(p.N * p.C * p.window.in_size()), weights = random.vector(p.M * p.C * p.window.kernel_size());
    std::vector<float> planes(x.size()), y(static_cast<size_t>(p.N * p.M * p.window.out_size()), 77);
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t c = 0; c < p.C; ++c)
        for (int64_t i = 0; i < p.window.in_size(); ++i)
          planes[(n * p.C + c) * p.window.in_size() + i] = x[(n * p.window.in_size() + i) * p.C + c];
    const auto reference = test::reference_conv<float, double>(p, planes, weights);
    std::vector<double> expected(reference.size());
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t m = 0; m < p.M; ++m)
        for (int64_t i = 0; i < p.window.out_size(); ++i)
          expected[(n * p.window.out_size() + i) * p.M + m] = reference[(n * p.M + m) * p.window.out_size() + i];
    for (NhwcMethod method : nhwc_methods(p)) {
      Scratch scratch(nhwc_conv_unpacked_scratch_bytes(p, method, 1));
      nhwc_conv_unpacked(p, method, x.data(), weights.data(), y.data(), {}, scratch.data(), 1, nullptr);
      test::expect_near(y, expected, 2e-5);
    }
  }
}

TEST(PoolGradientNhwc, EqualsThePlacesOfMaxPool) {
  Random random(46);
  for (int round = 0; round < 60; ++round) {
    const int64_t N = 2, C = random.integer(1, 70);
    const Window w = test::random_window(random, 2, 12, random.coin());
    std::vector<float> x = random.vector(N * C * w.in_size()), planes(x.size());
    // There are few distinct numbers, so that several elements are the maximum.
    for (float& v : x) v = static_cast<float>(random.integer(-3, 3));
    if (random.coin())
      x[static_cast<size_t>(random.integer(0, static_cast<int64_t>(x.size()) - 1))] = std::numeric_limits<float>::quiet_NaN();
    for (int64_t n = 0; n < N; ++n)
      for (int64_t c = 0; c < C; ++c)
        for (int64_t i = 0; i < w.in_size(); ++i) planes[(n * C + c) * w.in_size() + i] = x[(n * w.in_size() + i) * C + c];
    const auto dy = random.vector(N * C * w.out_size());
    std::vector<float> y(dy.size()), dx(x.size(), 77);
    std::vector<int64_t> places(dy.size());
    max_pool<float>(w, N * C, planes.data(), y.data(), places.data(), false, nullptr);
    std::vector<double> expected(x.size());
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t c = 0; c < C; ++c) {
        for (int64_t o = 0; o < w.out_size(); ++o) {
          const int64_t place = places[(n * C + c) * w.out_size() + o] - (n * C + c) * w.in_size();
          if (places[(n * C + c) * w.out_size() + o] >= 0)
            expected[(n * w.in_size() + place) * C + c] += double(dy[(n * w.out_size() + o) * C + c]);
        }
      }
    }
    max_pool_gradient_nhwc(w, N, C, dy.data(), x.data(), dx.data(), nullptr);
    test::expect_near(dx, expected, 1e-6);
  }
}

}  // namespace
}  // namespace treadle::kernels
