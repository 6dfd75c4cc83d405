#include "kernels/normalization/norm_nhwc.h"

#include <limits>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

// Normalises by the definition, in double.
std::vector<float> reference(const NhwcNorm& norm, const std::vector<float>& x, const std::vector<float>& scale,
                             const std::vector<float>& bias, std::vector<float> y) {
  const int64_t size = norm.C / norm.groups;
  for (int64_t n = 0; n < norm.N; ++n) {
    for (int64_t c = 0; c < norm.C; ++c) {
      const int64_t c0 = c / size * size;
      auto at = [&](int64_t p, int64_t channel) {
        return static_cast<double>(x[static_cast<size_t>((n * norm.pixels + p) * norm.x_pixel + channel)]);
      };
      double mean = 0, variance = 0;
      for (int64_t p = 0; p < norm.pixels; ++p)
        for (int64_t k = c0; k < c0 + size; ++k) mean += at(p, k) / static_cast<double>(norm.pixels * size);
      for (int64_t p = 0; p < norm.pixels; ++p)
        for (int64_t k = c0; k < c0 + size; ++k)
          variance += (at(p, k) - mean) * (at(p, k) - mean) / static_cast<double>(norm.pixels * size);
      const double factor = static_cast<double>(scale[static_cast<size_t>(c)]) / std::sqrt(variance + static_cast<double>(norm.epsilon));
      for (int64_t p = 0; p < norm.pixels; ++p) {
        const double value = (at(p, c) - mean) * factor + static_cast<double>(bias[static_cast<size_t>(c)]);
        y[static_cast<size_t>((n * norm.pixels + p) * norm.y_pixel + c)] = std::max(norm.low, static_cast<float>(value));
      }
    }
  }
  return y;
}

TEST(NormNhwc, IsTheDefinitionForAnyShapeAndAnyThreads) {
  Random random;
  ThreadPool one(1), three(3);
  for (int round = 0; round < 60; ++round) {
    NhwcNorm norm;
    const int64_t size = random.integer(1, 20);
    norm.groups = random.integer(1, 12);
    norm.N = random.integer(1, 3), norm.pixels = random.integer(1, 400), norm.C = norm.groups * size;
    norm.x_pixel = norm.C + random.integer(0, 1) * 5, norm.y_pixel = norm.C + random.integer(0, 1) * 3;
    norm.low = random.coin() ? 0 : -std::numeric_limits<float>::infinity();
    // With such a large mean, a variance computed as a difference of squares would be wrong.
    const double offset = random.coin() ? 300 : 0;
    const auto x = random.vector(norm.N * norm.pixels * norm.x_pixel, offset - 1, offset + 1), scale = random.vector(norm.C),
               bias = random.vector(norm.C);
    const std::vector<float> before(static_cast<size_t>(norm.N * norm.pixels * norm.y_pixel), 7);
    std::vector<float> results[2] = {before, before};
    std::vector<std::byte> scratch(norm_nhwc_scratch_bytes(norm));
    norm_nhwc(norm, x.data(), scale.data(), bias.data(), results[0].data(), scratch.data(), &one);
    norm_nhwc(norm, x.data(), scale.data(), bias.data(), results[1].data(), scratch.data(), &three);
    EXPECT_EQ(results[0], results[1]);
    test::expect_near(results[0], reference(norm, x, scale, bias, before), norm.pixels * size == 1 || offset > 0 ? 3e-4 : 4e-6);
  }
}

TEST(NormNhwc, WritesOverItsInput) {
  Random random;
  NhwcNorm norm{.N = 2, .pixels = 300, .C = 19, .groups = 19, .x_pixel = 19, .y_pixel = 19};
  auto x = random.vector(2 * 300 * 19);
  const auto scale = random.vector(19), bias = random.vector(19), expected = reference(norm, x, scale, bias, x);
  std::vector<std::byte> scratch(norm_nhwc_scratch_bytes(norm));
  norm_nhwc(norm, x.data(), scale.data(), bias.data(), x.data(), scratch.data(), nullptr);
  test::expect_near(x, expected, 4e-6);
}

TEST(NormNhwc, NaNSpreadsOverItsGroupOnlyAndNothingIsNothing) {
  NhwcNorm norm{.N = 1, .pixels = 4, .C = 4, .groups = 2, .x_pixel = 4, .y_pixel = 4};
  std::vector<float> x(16, 1), y(16), scale(4, 1), bias(4, 0);
  x[5] = NAN;
  std::vector<std::byte> scratch(norm_nhwc_scratch_bytes(norm));
  norm_nhwc(norm, x.data(), scale.data(), bias.data(), y.data(), scratch.data(), nullptr);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(y[i]), i % 4 < 2) << i;
  norm.pixels = 0;
  norm_nhwc(norm, nullptr, scale.data(), bias.data(), nullptr, scratch.data(), nullptr);
}

}  // namespace
}  // namespace treadle::kernels
