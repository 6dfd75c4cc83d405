// Compares gradients of rows (layer and RMS normalisation, and softmax) with their formulas in double, one element after the other.
#include "kernels/normalization/row_gradient.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/guarded.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

struct Expected {
  std::vector<double> dx, dscale, dbias;
};

// Computes the gradient by the Jacobian of a row: dx_j = sum_i d_i (delta_ij - [centred] / n - xhat_i xhat_j / n) / std with d = dy scale.
Expected norm_reference(const NormGradient<float>& job) {
  const auto n = static_cast<size_t>(job.length), rows = static_cast<size_t>(job.rows);
  Expected e{std::vector<double>(rows * n), std::vector<double>(n), std::vector<double>(n)};
  for (size_t r = 0; r < rows; ++r) {
    const float *x = job.x + r * n, *dy = job.dy + r * n;
    double mean = 0, squares = 0;
    for (size_t i = 0; job.centered && i < n; ++i) mean += static_cast<double>(x[i]) / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(n) + job.epsilon);
    auto xhat = [&](size_t i) { return (static_cast<double>(x[i]) - mean) / deviation; };
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < n; ++i) {
        const double slope = (i == j ? 1.0 : 0.0) - ((job.centered ? 1.0 : 0.0) + xhat(i) * xhat(j)) / static_cast<double>(n);
        e.dx[r * n + j] += static_cast<double>(dy[i]) * static_cast<double>(job.scale[i]) * slope / deviation;
      }
      e.dscale[j] += static_cast<double>(dy[j]) * xhat(j);
      e.dbias[j] += static_cast<double>(dy[j]);
    }
  }
  return e;
}

TEST(RowGradient, NormalizationsFollowTheirFormula) {
  test::Random random(3);
  ThreadPool pool(2);
  for (const bool centered : {true, false}) {
    for (const auto& [rows, length] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {70, 16}, {37, 100}, {5, 33}, {0, 8}}) {
      const test::Guarded<float> x(random.vector(rows * length)), dy(random.vector(rows * length)), scale(random.vector(length));
      test::Guarded<float> dx(rows * length), dscale(length), dbias(length);
      std::vector<float> scratch(norm_gradient_scratch_bytes(rows, length, sizeof(float)) / sizeof(float) + 1);
      NormGradient<float> job{.rows = rows, .length = length, .centered = centered, .dy = dy.data(), .x = x.data(), .scale = scale.data()};
      job.dx = dx.data(), job.dscale = dscale.data(), job.dbias = dbias.data();
      const Expected expected = norm_reference(job);
      norm_gradient(job, scratch.data(), &pool);
      test::expect_near(dx.values(), expected.dx, length == 1 ? 1e-2 : 1e-5);
      test::expect_near(dscale.values(), expected.dscale, 1e-5);
      test::expect_near(dbias.values(), expected.dbias, 1e-5);
      // Computed in place and on one thread, the result must have the same bits.
      const std::vector<float> apart = dx.values(), apart_scale = dscale.values();
      job.dx = dy.data();
      norm_gradient(job, scratch.data(), nullptr);
      EXPECT_EQ(dy.values(), apart);
      EXPECT_EQ(dscale.values(), apart_scale);
    }
  }
}

TEST(RowGradient, SoftmaxFollowsItsFormula) {
  test::Random random(4);
  for (const int64_t length : {1, 5, 16, 50, 197}) {
    const int64_t rows = 9;
    const test::Guarded<float> y(random.vector(rows * length, 0, 1)), dy(random.vector(rows * length)), dx(rows * length);
    std::vector<double> expected;
    for (int64_t r = 0; r < rows; ++r) {
      const float *of_y = y.data() + r * length, *of_dy = dy.data() + r * length;
      double dot = 0;
      for (int64_t i = 0; i < length; ++i) dot += static_cast<double>(of_y[i]) * static_cast<double>(of_dy[i]);
      for (int64_t i = 0; i < length; ++i) expected.push_back(static_cast<double>(of_y[i]) * (static_cast<double>(of_dy[i]) - dot));
    }
    softmax_gradient(rows, length, y.data(), dy.data(), dx.data(), nullptr);
    test::expect_near(dx.values(), expected, 1e-5);
    softmax_gradient(rows, length, y.data(), dy.data(), dy.data(), nullptr);
    EXPECT_EQ(dy.values(), dx.values());
  }
}

}  // namespace
}  // namespace treadle::kernels
