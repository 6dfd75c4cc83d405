#include "kernels/conv/conv_in_planes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/threads/thread_pool.h"
#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::Random;

constexpr float kUntouched = 77;

struct Scratch {
  std::vector<char> room;
  explicit Scratch(size_t bytes) : room(bytes + 64, 0x7F) {}
  void* data() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) & ~uintptr_t{63}); }
};

ConvParams random_params(Random& random) {
  ConvParams p{.N = 1, .C = random.integer(1, 20), .M = random.integer(192, 230)};
  do p.window = test::random_window(random, static_cast<int>(random.integer(1, 3)), 8);
  while (!conv_in_planes_pays(p));
  return p;
}

TEST(ConvInPlanes, EqualsTheReference) {
  Random random(31);
  ThreadPool threads(3);
  for (int round = 0; round < 60; ++round) {
    ConvParams p = random_params(random);
    const int64_t pixels = p.window.out_size(), in_size = p.window.in_size();
    const auto planes = random.vector(p.C * in_size), weights = random.vector(p.M * p.C * p.window.kernel_size()),
               bias = random.vector(p.M), residual = random.vector(p.M * pixels);
    const std::vector<double> expected = test::reference_conv<float, double>(p, planes, weights);
    p.x_planes = random.coin();
    p.x_pixel = p.C + random.integer(0, 3), p.y_pixel = p.M + random.integer(0, 3);
    std::vector<float> x(static_cast<size_t>(in_size * p.x_pixel), NAN);
    for (int64_t i = 0; i < in_size; ++i)
      for (int64_t c = 0; c < p.C; ++c) x[i * p.x_pixel + c] = planes[c * in_size + i];
    const bool adds = random.coin();
    ConvEpilogue epilogue{.bias = bias.data(), .residual = adds ? residual.data() : nullptr, .activation = Unary::relu};
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
      std::vector<float> y(static_cast<size_t>(pixels * p.y_pixel), kUntouched);
      Scratch scratch(conv_in_planes_scratch_bytes(p, pool ? 3 : 1));
      conv_in_planes(p, p.x_planes ? planes.data() : x.data(), weights.data(), y.data(), epilogue, scratch.data(), pool ? 3 : 1, pool);
      for (int64_t i = 0; i < pixels; ++i) {
        for (int64_t m = 0; m < p.y_pixel; ++m) {
          const float actual = y[i * p.y_pixel + m];
          if (m >= p.M) {
            ASSERT_EQ(actual, kUntouched);
            continue;
          }
          const double sum = expected[m * pixels + i] + double(bias[m]) + (adds ? double(residual[i * p.M + m]) : 0.0);
          ASSERT_NEAR(actual, std::max(0.0, sum), 1e-4) << "round " << round << ", pixel " << i << ", filter " << m;
        }
      }
    }
  }
}

TEST(ConvInPlanes, PaysForOneImageOfFewPixelsOnly) {
  ConvParams p{.N = 1, .C = 64, .M = 256};
  const int64_t in[] = {8, 8}, three[] = {3, 3}, pads[] = {1, 1, 1, 1};
  p.window = make_window(in, in, three, {}, pads, {});
  EXPECT_TRUE(conv_in_planes_pays(p) && conv_grad_input_in_planes_pays(p) && conv_grad_weights_in_planes_pays(p));
  ConvParams few = p;  // a convolution with few filters
  few.M = 64;
  EXPECT_FALSE(conv_in_planes_pays(few) || conv_grad_weights_in_planes_pays(few));
  EXPECT_TRUE(conv_grad_input_in_planes_pays(few));
  ConvParams several = p, groups = p;
  several.N = 2, groups.group = 2;
  EXPECT_FALSE(conv_in_planes_pays(several) || conv_grad_input_in_planes_pays(groups));
  const int64_t larger[] = {9, 8}, one[] = {1, 1};
  ConvParams many = p, pointwise = p;
  many.window = make_window(larger, larger, three, {}, pads, {});
  pointwise.window = make_window(in, in, one, {}, {}, {});
  EXPECT_FALSE(conv_grad_input_in_planes_pays(many) || conv_grad_input_in_planes_pays(pointwise));
}

}  // namespace
}  // namespace treadle::kernels
