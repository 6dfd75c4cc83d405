#include "kernels/conv/scaled_pointwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/conv/nhwc.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

// For small images the kernel scales the image, for large ones the weights.
TEST(ScaledPointwise, EqualsTheDefinition) {
  test::Random random(61);
  for (int round = 0; round < 200; ++round) {
    const int64_t extent[] = {random.integer(0, 9), random.integer(1, round % 4 == 0 ? 40 : 9)}, one[] = {1, 1};
    ConvParams p{.N = random.integer(0, 3), .C = random.integer(1, 70), .M = random.integer(1, 150)};
    p.window = make_window(extent, extent, one, {}, {}, {});
    const int64_t pixels = p.window.out_size(), y_size = p.N * pixels * p.M;
    const auto x = random.vector(p.N * pixels * p.C), scale = random.vector(p.N * p.C), weights = random.vector(p.M * p.C),
               bias = random.vector(p.M), residual = random.vector(y_size);
    ConvEpilogue e;
    if (random.coin()) e.bias = bias.data();
    if (random.coin()) e.residual = residual.data();
    if (random.coin()) e.activation = Unary::relu;
    std::vector<float> packed(nhwc_packed_size(p, NhwcMethod::direct)), first;
    nhwc_pack(p, NhwcMethod::direct, weights.data(), packed.data());
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<char> scratch(scaled_pointwise_scratch_bytes(p) + 64);
      std::vector<float> y(y_size, 77);
      scaled_pointwise(p, x.data(), scale.data(), packed.data(), y.data(), e, scratch.data(), &pool);
      for (int64_t i = 0; i < y_size; ++i) {
        const int64_t m = i % p.M, pixel = i / p.M, image = pixel / pixels;
        double sum = (e.bias ? bias[m] : 0) + (e.residual ? residual[i] : 0);
        for (int64_t c = 0; c < p.C; ++c) sum += double(x[pixel * p.C + c]) * scale[image * p.C + c] * weights[m * p.C + c];
        if (e.activation == Unary::relu) sum = std::max(sum, 0.0);
        ASSERT_NEAR(y[i], sum, 2e-5) << "element " << i << ", round " << round;
      }
      if (first.empty()) first = y;
      ASSERT_EQ(first, y) << "other bits with " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
