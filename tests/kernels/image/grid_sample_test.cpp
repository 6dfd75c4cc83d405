#include "kernels/image/grid_sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/guarded.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Guarded;
using test::Random;

// Samples bilinearly by the specification, tap by tap, with zeros outside of the image.
double sampled(const float* x, int64_t height, int64_t width, double across, double down, bool align_corners) {
  auto place = [&](double at, int64_t extent) {
    const auto e = static_cast<double>(extent);
    return align_corners ? (at + 1) / 2 * (e - 1) : ((at + 1) * e - 1) / 2;
  };
  const double column = place(across, width), row = place(down, height), left = std::floor(column), top = std::floor(row);
  double sum = 0;
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 2; ++c) {
      const double i = top + r, j = left + c;
      if (i < 0 || j < 0 || i >= static_cast<double>(height) || j >= static_cast<double>(width)) continue;
      const double weight = (r == 1 ? row - top : top + 1 - row) * (c == 1 ? column - left : left + 1 - column);
      sum += weight * x[static_cast<int64_t>(i) * width + static_cast<int64_t>(j)];
    }
  }
  return sum;
}

TEST(GridSample, TakesNothingFromBeyondTheImage) {
  Random random(7);
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {2, 9}, {5, 3}, {32, 17}}) {
    for (const bool align_corners : {false, true}) {
      for (const int64_t points : {1, 15, 16, 17, 50}) {
        GridSampleParams p{.C = 3, .in = {height, width, 1}, .points = points, .align_corners = align_corners};
        // About half of the points lie outside of the image.
        const Guarded<float> x(random.vector(3 * height * width, -2, 2)), grid(random.vector(2 * points, -1.6, 1.6)), y(3 * points);
        grid_sample(p, x.data(), grid.data(), y.data(), nullptr);
        for (int64_t i = 0; i < 3 * points; ++i) {
          const int64_t point = i % points;
          const double expected =
              sampled(x.data() + i / points * height * width, height, width, static_cast<double>(grid.data()[2 * point]),
                      static_cast<double>(grid.data()[2 * point + 1]), align_corners);
          ASSERT_NEAR(static_cast<double>(y.data()[i]), expected, 2e-5)
              << height << "x" << width << ", point " << point << " of " << points;
        }
      }
    }
  }
}

// A pixel with weight 0 must not be multiplied: 0 times infinity is NaN.
TEST(GridSample, KeepsInfinitiesFromPointsOutside) {
  const float inf = std::numeric_limits<float>::infinity();
  const GridSampleParams p{.in = {2, 2, 1}, .points = 4, .align_corners = true};
  const std::vector<float> x{inf, 1, inf, 3}, grid{2, -1, 2, 1, 1.5F, 0, -9, 0};
  std::vector<float> y(4, -1.0F);
  grid_sample(p, x.data(), grid.data(), y.data(), nullptr);
  EXPECT_EQ(y, (std::vector<float>{0.5F, 1.5F, 1.5F, 0.0F}));
}

}  // namespace
}  // namespace treadle::kernels
