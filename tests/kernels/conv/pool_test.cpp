#include "kernels/conv/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/conv/reference.h"

namespace treadle::kernels {
namespace {

using test::for_each_tap;
using test::Random;

TEST(Pool, EqualsTheReferenceForRandomWindows) {
  Random random(41);
  for (int round = 0; round < 200; ++round) {
    const int rank = static_cast<int>(random.integer(1, 3));
    const Window w = test::random_window(random, rank, rank == 1 ? 50 : 12, random.coin());
    const int64_t planes = random.integer(1, 3), out = w.out_size(), in = w.in_size();
    const auto x = random.vector(planes * in);
    std::vector<float> largest(planes * out), largest2 = largest, mean = largest, mean_pad = largest, norm2 = largest, norm3 = largest;
    std::vector<int64_t> indices(planes * out);
    const bool column_major = random.coin();
    max_pool(w, planes, x.data(), largest.data(), nullptr, false, nullptr);
    max_pool(w, planes, x.data(), largest2.data(), indices.data(), column_major, nullptr);
    average_pool(w, planes, x.data(), mean.data(), false, nullptr);
    average_pool(w, planes, x.data(), mean_pad.data(), true, nullptr);
    lp_pool(w, planes, x.data(), norm2.data(), 2, nullptr);
    lp_pool(w, planes, x.data(), norm3.data(), 3, nullptr);
    for (int64_t p = 0; p < planes; ++p) {
      std::vector<double> sum(out), squares(out), cubes(out), best(out, -INFINITY);
      std::vector<int64_t> place(out, -1), inside(out);
      for_each_tap(w, [&](int64_t o, int64_t, int64_t i) {
        if (i < 0) return;
        const double v = x[p * in + i];
        sum[o] += v, squares[o] += v * v, cubes[o] += std::abs(v * v * v), ++inside[o];
        if (v > best[o]) best[o] = v, place[o] = i;
      });
      for (int64_t o = 0; o < out; ++o) {
        // Counts the elements of the window that are inside of the input and its padding.
        const int64_t at[3] = {o / w.out[2] / w.out[1], o / w.out[2] % w.out[1], o % w.out[2]};
        int64_t padded = 1;
        for (int axis = 0; axis < 3; ++axis) {
          int64_t n = 0;
          for (int64_t k = 0; k < w.kernel[axis]; ++k) {
            const int64_t i = at[axis] * w.stride[axis] + k * w.dilation[axis] - w.pad_begin[axis];
            n += i >= -w.pad_begin[axis] && i < w.in[axis] + w.pad_end[axis];
          }
          padded *= n;
        }
        const int64_t y = p * out + o;
        ASSERT_EQ(largest[y], best[o]);
        ASSERT_EQ(largest2[y], best[o]);
        const int64_t d = place[o] / w.in[2] / w.in[1], h = place[o] / w.in[2] % w.in[1], c = place[o] % w.in[2];
        if (place[o] >= 0) {
          ASSERT_EQ(indices[y], p * in + (column_major ? (c * w.in[1] + h) * w.in[0] + d : place[o]));
        }
        if (inside[o] > 0) {
          ASSERT_NEAR(mean[y], sum[o] / inside[o], 1e-5);
        }
        ASSERT_NEAR(mean_pad[y], sum[o] / padded, 1e-5);
        ASSERT_NEAR(norm2[y], std::sqrt(squares[o]), 1e-5);
        ASSERT_NEAR(norm3[y], std::cbrt(cubes[o]), 1e-5);
      }
    }
  }
}

TEST(Pool, OutputExtentsFollowPyTorch) {
  EXPECT_EQ(pool_out_extent(5, 2, 2, 1, 0, 0, false), 2);
  EXPECT_EQ(pool_out_extent(5, 2, 2, 1, 0, 0, true), 3);
  EXPECT_EQ(pool_out_extent(1, 1, 2, 1, 0, 0, true), 1);
  EXPECT_EQ(pool_out_extent(2, 1, 2, 1, 0, 0, true), 1);  // a second window would begin after the end of the input
  EXPECT_EQ(pool_out_extent(2, 3, 1, 1, 0, 0, false), 0);
  EXPECT_EQ(pool_out_extent(2, 3, 2, 1, 0, 0, true), 1);
  EXPECT_EQ(pool_out_extent(1, 3, 2, 1, 0, 0, true), 0);
}

TEST(Pool, NaNWinsAMaximum) {
  const float x[] = {1, NAN, 3, 2};
  float y[3];
  const int64_t in[] = {4}, out[] = {3}, kernel[] = {2};
  int64_t indices[3];
  const Window w = make_window(in, out, kernel, {}, {}, {});
  max_pool(w, 1, x, y, nullptr, false, nullptr);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], 3);
  max_pool(w, 1, x, y, indices, false, nullptr);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(indices[2], 2);
}

// The window is one plane deep, like that of an image, but the input has several planes.
TEST(Pool, WideRowsOfVolumes) {
  Random random(43);
  const int64_t in[] = {3, 5, 41}, kernel[] = {1, 3, 3}, strides[] = {1, 2, 2}, pads[] = {0, 1, 1, 0, 1, 1}, out[] = {3, 3, 21};
  const Window w = make_window(in, out, kernel, strides, pads, {});
  const int64_t planes = 2;
  const auto x = random.vector(planes * w.in_size());
  std::vector<float> largest(planes * w.out_size()), mean = largest;
  max_pool(w, planes, x.data(), largest.data(), nullptr, false, nullptr);
  average_pool(w, planes, x.data(), mean.data(), false, nullptr);
  for (int64_t p = 0; p < planes; ++p) {
    std::vector<double> sum(w.out_size()), best(w.out_size(), -INFINITY), inside(w.out_size());
    for_each_tap(w, [&](int64_t o, int64_t, int64_t i) {
      if (i < 0) return;
      const double v = x[p * w.in_size() + i];
      sum[o] += v, best[o] = std::max(best[o], v), ++inside[o];
    });
    for (int64_t o = 0; o < w.out_size(); ++o) {
      ASSERT_EQ(largest[p * w.out_size() + o], best[o]) << o;
      ASSERT_NEAR(mean[p * w.out_size() + o], sum[o] / inside[o], 1e-5) << o;
    }
  }
}

// The rows are computed in several parts. Some strides have special vector code, and others do not.
TEST(Pool, WideRowsOfEveryType) {
  Random random(42);
  for (const int64_t width : {1, 17, 33, 1500, 2100})
    for (const int64_t stride : {1, 2, 3})
      for (const int64_t kernel : {2, 3, 5}) {
        const int64_t in[] = {6, width}, pads[] = {1, kernel / 2, 0, kernel / 2}, kernels[] = {3, kernel}, strides[] = {2, stride};
        const int64_t out[] = {pool_out_extent(6, 3, 2, 1, 1, 0, false),
                               pool_out_extent(width, kernel, stride, 1, kernel / 2, kernel / 2, true)};
        if (out[1] == 0) continue;
        const Window w = make_window(in, out, kernels, strides, pads, {});
        const int64_t planes = 3, size = planes * w.in_size();
        const auto bytes = random.integers<int8_t>(size, -128, 127);
        std::vector<uint8_t> unsigned_bytes(bytes.begin(), bytes.end());
        std::vector<double> x(bytes.begin(), bytes.end());
        x[random.integer(0, size - 1)] = NAN;
        std::vector<int8_t> y1(planes * w.out_size());
        std::vector<uint8_t> y2(y1.size());
        std::vector<double> y3(y1.size()), y4(y1.size());
        max_pool(w, planes, bytes.data(), y1.data(), nullptr, false, nullptr);
        max_pool(w, planes, unsigned_bytes.data(), y2.data(), nullptr, false, nullptr);
        max_pool(w, planes, x.data(), y3.data(), nullptr, false, nullptr);
        average_pool(w, planes, x.data(), y4.data(), false, nullptr);
        for (int64_t p = 0; p < planes; ++p) {
          std::vector<int> best(w.out_size(), -1000), best2 = best, inside(w.out_size());
          std::vector<double> largest(w.out_size(), -INFINITY), sum(w.out_size());
          for_each_tap(w, [&](int64_t o, int64_t, int64_t i) {
            if (i < 0) return;
            i += p * w.in_size();
            best[o] = std::max<int>(best[o], bytes[i]), best2[o] = std::max<int>(best2[o], unsigned_bytes[i]);
            largest[o] = std::isnan(x[i]) || std::isnan(largest[o]) ? NAN : std::max(largest[o], x[i]);
            sum[o] += x[i], ++inside[o];
          });
          for (int64_t o = 0; o < w.out_size(); ++o) {
            const int64_t y = p * w.out_size() + o;
            ASSERT_EQ(y1[y], best[o]) << width << " " << stride << " " << kernel << " " << o;
            ASSERT_EQ(y2[y], best2[o]);
            if (std::isnan(largest[o])) {
              ASSERT_TRUE(std::isnan(y3[y]) && std::isnan(y4[y]));
            } else {
              ASSERT_EQ(y3[y], largest[o]);
              ASSERT_DOUBLE_EQ(y4[y], sum[o] / inside[o]);
            }
          }
        }
      }
}

TEST(Pool, BytesAreComparedAsTheyAre) {
  const uint8_t x[] = {200, 10, 255, 0};
  uint8_t y[2];
  const int64_t in[] = {4}, out[] = {2}, kernel[] = {2}, stride[] = {2};
  max_pool(make_window(in, out, kernel, stride, {}, {}), 1, x, y, nullptr, false, nullptr);
  EXPECT_EQ(y[0], 200);
  EXPECT_EQ(y[1], 255);
}

}  // namespace
}  // namespace treadle::kernels
