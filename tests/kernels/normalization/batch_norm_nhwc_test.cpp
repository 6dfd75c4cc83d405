#include "kernels/normalization/batch_norm_nhwc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/thread_pool.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

// Statistics and gradients in double, for means far from 0 as well.
void check(Random& random, int64_t rows, int64_t C, float offset) {
  std::vector<float> x = random.vector(rows * C);
  for (float& v : x) v += offset;
  const auto dy = random.vector(rows * C), scale = random.vector(C);
  std::vector<double> mean(C), variance(C), dx(x.size()), dscale(C), dbias(C);
  for (int64_t c = 0; c < C; ++c) {
    for (int64_t r = 0; r < rows; ++r) mean[c] += double(x[r * C + c]) / double(rows);
    for (int64_t r = 0; r < rows; ++r) variance[c] += std::pow(double(x[r * C + c]) - mean[c], 2) / double(rows);
    const double inverse = 1 / std::sqrt(variance[c] + 1e-5);
    for (int64_t r = 0; r < rows; ++r) {
      dbias[c] += double(dy[r * C + c]);
      dscale[c] += double(dy[r * C + c]) * (double(x[r * C + c]) - mean[c]) * inverse;
    }
    for (int64_t r = 0; r < rows; ++r)
      dx[r * C + c] =
          double(scale[c]) * inverse *
          (double(dy[r * C + c]) - dbias[c] / double(rows) - (double(x[r * C + c]) - mean[c]) * inverse * dscale[c] / double(rows));
  }
  ThreadPool threads(3);
  std::vector<float> before;
  for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
    std::vector<float> m(C), v(C), inverse(C), ours(x.size()), ds(C), db(C);
    std::vector<double> scratch(batch_norm_nhwc_scratch_bytes(rows, C) / sizeof(double) + 8);
    moments_nhwc(rows, C, x.data(), m.data(), v.data(), scratch.data(), pool);
    test::expect_near(m, mean, 1e-6);
    test::expect_near(v, variance, 1e-5);
    for (int64_t c = 0; c < C; ++c) inverse[c] = 1 / std::sqrt(v[c] + 1e-5F);
    batch_norm_gradient_nhwc(rows, C, dy.data(), x.data(), scale.data(), m.data(), inverse.data(), ours.data(), ds.data(), db.data(),
                             scratch.data(), pool);
    test::expect_near(ours, dx, 1e-4);  // of one or two rows: the deviation is nearly 0
    test::expect_near(ds, dscale, 5e-5);
    test::expect_near(db, dbias, 2e-5);
    if (pool) {
      EXPECT_EQ(ours, before);
    }
    before = ours;
  }
}

TEST(BatchNormNhwc, EqualsDoubleForAnyNumberOfRowsAndChannels) {
  Random random(51);
  for (int64_t rows : {1, 2, 63, 64, 65, 500, 5000})
    for (int64_t C : {1, 3, 16, 70, 130}) check(random, rows, C, 0);
  check(random, 3000, 20, 30);
}

}  // namespace
}  // namespace treadle::kernels
