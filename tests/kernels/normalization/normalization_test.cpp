#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/normalization/norm.h"
#include "kernels/normalization/row.h"
#include "kernels/normalization/softmax.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::expect_near;
using test::Random;

template <typename T>
void check_softmax(double tolerance) {
  Random random(61);
  for (int round = 0; round < 150; ++round) {
    const bool pairs = round % 5 == 0;  // some rounds have many rows of two classes
    const int64_t outer = pairs ? random.integer(0, 70) : random.integer(0, 5), n = pairs ? 2 : random.integer(1, 90);
    const int64_t inner = pairs || random.coin() ? 1 : random.integer(1, round % 7 == 0 ? 1200 : 40);
    const auto x = random.vector<T>(outer * n * inner, -20, 20);
    std::vector<T> y(x.size()), z(x.size()), h(x.size());
    softmax(outer, n, inner, x.data(), y.data(), nullptr);
    log_softmax(outer, n, inner, x.data(), z.data(), nullptr);
    hardmax(outer, n, inner, x.data(), h.data(), nullptr);
    std::vector<double> soft(x.size()), logs(x.size()), hard(x.size());
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        auto at = [&](int64_t k) { return (o * n + k) * inner + i; };
        double sum = 0;
        int64_t best = 0;
        for (int64_t k = 0; k < n; ++k) {
          sum += std::exp(double(x[at(k)]));
          if (x[at(k)] > x[at(best)]) best = k;
        }
        for (int64_t k = 0; k < n; ++k) soft[at(k)] = std::exp(double(x[at(k)])) / sum, logs[at(k)] = double(x[at(k)]) - std::log(sum);
        hard[at(best)] = 1;
      }
    }
    expect_near(y, soft, tolerance);
    expect_near(z, logs, 2 * tolerance);  // the sum has up to 90 terms, which are added in sequence
    expect_near(h, hard, 0);
    std::vector<T> in_place = x;
    softmax(outer, n, inner, in_place.data(), in_place.data(), nullptr);
    ASSERT_EQ(in_place, y);
  }
}

// The result must be that of numpy.argmax, which ONNX's reference uses: NaN counts as the largest, and the first of equal elements wins.
// Wide planes take another code path.
TEST(Hardmax, FindsTheFirstLargestAndTakesNaNForIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> column{1, 3, 3, 2}, with_nan{1, nan, 3, nan};
  for (const std::vector<float>& values : {column, with_nan}) {
    for (const int64_t inner : {1, 3, 300}) {
      std::vector<float> x, y(static_cast<size_t>(4 * inner), -1.0F);
      for (const float value : values) x.insert(x.end(), static_cast<size_t>(inner), value);
      hardmax<float>(1, 4, inner, x.data(), y.data(), nullptr);
      for (int64_t i = 0; i < 4 * inner; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], i / inner == 1 ? 1.0F : 0.0F) << inner << " " << i;
    }
  }
}

TEST(Softmax, Float32EqualsTheReference) { check_softmax<float>(5e-7); }
TEST(Softmax, Float64EqualsTheReference) { check_softmax<double>(1e-14); }

TEST(Softmax, LargeAndMaskedElements) {
  const float x[] = {1000, 1000, -INFINITY, 999};
  float y[4];
  softmax(1, 4, 1, x, y, nullptr);
  const float s = 2 + std::exp(-1.0f);
  expect_near(std::vector<float>(y, y + 4), std::vector<float>{1 / s, 1 / s, 0, std::exp(-1.0f) / s}, 1e-6);
  for (int place = 0; place < 40; ++place) {
    for (int64_t inner : {1, 40}) {
      std::vector<float> v(40 * inner, 1), w(v.size());
      v[place * inner] = NAN;
      softmax(1, 40, inner, v.data(), w.data(), nullptr);
      for (int i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(w[i * inner]));
    }
  }
  const float nothing[] = {-INFINITY, -INFINITY};
  softmax(1, 2, 1, nothing, y, nullptr);
  EXPECT_TRUE(std::isnan(y[0]));
}

template <typename T>
void check_norms(double tolerance) {
  Random random(62);
  for (int round = 0; round < 100; ++round) {
    const int64_t N = random.integer(1, 3), groups = random.integer(1, 3), C = groups * random.integer(1, 4), inner = random.integer(1, 70);
    const auto x = random.vector<T>(N * C * inner, -1, 3), scale = random.vector<T>(C), bias = random.vector<T>(C),
               mean = random.vector<T>(C), variance = random.vector<T>(C, 0.1, 2), row_scale = random.vector<T>(inner),
               row_bias = random.vector<T>(inner);
    const T epsilon = T(1e-3);
    std::vector<T> batch(x.size()), group = batch, layer = batch, rms = batch, plain = batch, response = batch, norm1 = batch,
                                    norm2 = batch, mv = batch;
    std::vector<T> means(N * C), deviations(N * C);
    batch_norm(N, C, inner, x.data(), scale.data(), bias.data(), mean.data(), variance.data(), epsilon, batch.data(), nullptr);
    group_norm(N, C, groups, inner, x.data(), scale.data(), bias.data(), epsilon, group.data(), nullptr);
    layer_norm(N * C, inner, x.data(), row_scale.data(), row_bias.data(), epsilon, layer.data(), means.data(), deviations.data(), nullptr);
    layer_norm<T>(N * C, inner, x.data(), nullptr, nullptr, epsilon, plain.data(), nullptr, nullptr, nullptr);
    rms_norm(N * C, inner, x.data(), row_scale.data(), epsilon, rms.data(), nullptr);
    lrn<T>(N, C, inner, 3, T(0.5), T(0.75), T(2), x.data(), response.data(), nullptr);
    lp_normalize(N, C, inner, 1, x.data(), norm1.data(), nullptr);
    lp_normalize(N, C, inner, 2, x.data(), norm2.data(), nullptr);
    const int64_t dims[] = {N, C, inner};
    mean_variance_normalize(plan_reduce(dims, 0b101), x.data(), mv.data(), nullptr);

    auto at = [&](int64_t n, int64_t c, int64_t i) { return (n * C + c) * inner + i; };
    auto moments = [&](auto&& visit) {
      double sum = 0, squares = 0, count = 0;
      visit([&](double v) { sum += v, squares += v * v, count += 1; });
      const double m = sum / count;
      double var = 0;
      visit([&](double v) { var += (v - m) * (v - m); });
      return std::array<double, 3>{m, var / count, squares / count};
    };
    std::vector<double> e_batch(x.size()), e_group = e_batch, e_layer = e_batch, e_plain = e_batch, e_rms = e_batch, e_response = e_batch,
                                           e1 = e_batch, e2 = e_batch, e_mv = e_batch, e_means(N * C), e_deviations(N * C);
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t c = 0; c < C; ++c) {
        const int64_t channels = C / groups, first = c / channels * channels;
        const auto g = moments([&](auto f) {
          for (int64_t j = first; j < first + channels; ++j) {
            for (int64_t i = 0; i < inner; ++i) f(double(x[at(n, j, i)]));
          }
        });
        const auto row = moments([&](auto f) {
          for (int64_t i = 0; i < inner; ++i) f(double(x[at(n, c, i)]));
        });
        const auto channel = moments([&](auto f) {
          for (int64_t b = 0; b < N; ++b) {
            for (int64_t i = 0; i < inner; ++i) f(double(x[at(b, c, i)]));
          }
        });
        e_means[n * C + c] = row[0];
        e_deviations[n * C + c] = 1 / std::sqrt(row[1] + epsilon);
        for (int64_t i = 0; i < inner; ++i) {
          const int64_t p = at(n, c, i);
          const double v = x[p];
          e_batch[p] = (v - mean[c]) / std::sqrt(variance[c] + epsilon) * scale[c] + bias[c];
          e_group[p] = (v - g[0]) / std::sqrt(g[1] + epsilon) * scale[c] + bias[c];
          e_plain[p] = (v - row[0]) / std::sqrt(row[1] + epsilon);
          e_layer[p] = e_plain[p] * row_scale[i] + row_bias[i];
          e_rms[p] = v / std::sqrt(row[2] + epsilon) * row_scale[i];
          e_mv[p] = (v - channel[0]) / (std::sqrt(channel[1]) + 1e-9);
          double around = 0, absolute = 0, squares = 0;
          for (int64_t j = std::max<int64_t>(0, c - 1); j <= std::min(C - 1, c + 1); ++j) around += double(x[at(n, j, i)]) * x[at(n, j, i)];
          for (int64_t j = 0; j < C; ++j) absolute += std::abs(double(x[at(n, j, i)])), squares += double(x[at(n, j, i)]) * x[at(n, j, i)];
          e_response[p] = v / std::pow(2 + 0.5 / 3 * around, 0.75);
          e1[p] = v / absolute;
          e2[p] = v / std::sqrt(squares);
        }
      }
    }
    expect_near(batch, e_batch, tolerance);
    expect_near(group, e_group, tolerance);
    expect_near(layer, e_layer, tolerance);
    expect_near(plain, e_plain, tolerance);
    expect_near(means, e_means, tolerance);
    expect_near(deviations, e_deviations, tolerance);
    expect_near(rms, e_rms, tolerance);
    expect_near(response, e_response, tolerance);
    expect_near(norm1, e1, tolerance);
    expect_near(norm2, e2, tolerance);
    if (N * inner > 1) expect_near(mv, e_mv, 100 * tolerance);
  }
}

TEST(Norm, Float32EqualsTheReference) { check_norms<float>(1e-5); }
TEST(Norm, Float64EqualsTheReference) { check_norms<double>(1e-11); }

TEST(Norm, ALargeMeanDoesNotSpoilTheVariance) {
  Random random(63);
  auto x = random.vector(1000, 0, 1);
  double mean = 0, variance = 0;
  for (float& v : x) v += 10000;
  for (float v : x) mean += v / 1000.0;
  for (float v : x) variance += (v - mean) * (v - mean) / 1000;
  std::vector<float> y(1000);
  float deviation;
  layer_norm<float>(1, 1000, x.data(), nullptr, nullptr, 0, y.data(), nullptr, &deviation, nullptr);
  EXPECT_NEAR(deviation, 1 / std::sqrt(variance), 1e-5 / std::sqrt(variance));
}

// The sum of these elements has a larger rounding error than the elements have differences.
TEST(Norm, LargeElementsThatAreEqualHaveNoNegativeVariance) {
  Random random(64);
  for (int64_t n : {1, 3, 6, 7, 16, 31, 64, 100, 700}) {
    for (int round = 0; round < 200; ++round) {
      const float value = std::pow(10.0F, random.vector(1, 2, 12)[0]);
      const std::vector<float> x(3 * n, value);
      std::vector<float> y(3 * n);
      layer_norm<float>(3, n, x.data(), nullptr, nullptr, 0.01F, y.data(), nullptr, nullptr, nullptr);
      for (float v : y) ASSERT_TRUE(std::isfinite(v)) << n << " of " << value;
      ASSERT_GE(row_statistics(x.data(), n).variance, 0) << n << " of " << value;
    }
  }
  const float nan[] = {1, std::nanf(""), 2};
  EXPECT_TRUE(std::isnan(row_statistics(nan, 3).variance));
}

TEST(Norm, AZeroVectorStaysZero) {
  const float x[] = {0, 0};
  float y[] = {1, 1};
  lp_normalize(1, 2, 1, 2, x, y, nullptr);
  EXPECT_EQ(y[0], 0);
}

}  // namespace
}  // namespace treadle::kernels
