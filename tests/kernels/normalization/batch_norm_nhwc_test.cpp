#include "kernels/normalization/batch_norm_nhwc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/threads/thread_pool.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

struct Case {
  int64_t rows, C;
  float offset = 0;  // the mean of the elements of x
  BatchNormGate::Passes passes = BatchNormGate::Passes::always;
  bool is_computed = false, in_place = false;
};

/// Rows of dy, which are read from memory, or computed as twice the stored halves.
class Rows final : public GradientRows {
 public:
  Rows(const std::vector<float>& dy, int64_t C, bool is_computed) : dy_(dy.data()), C_(C), is_computed_(is_computed) {}
  const float* rows(int64_t first, int64_t count, float* buffer) const override {
    if (!is_computed_) return dy_ + first * C_;
    for (int64_t i = 0; i < count * C_; ++i) buffer[i] = 2 * halves[static_cast<size_t>(first * C_ + i)];
    return buffer;
  }
  std::vector<float> halves;

 private:
  const float* dy_;
  int64_t C_;
  bool is_computed_;
};

// Compares statistics and gradients with those in double, also for means far from 0.
void check(Random& random, const Case& t) {
  const int64_t rows = t.rows, C = t.C;
  std::vector<float> x = random.vector(rows * C);
  for (float& v : x) v += t.offset;
  const auto dy = random.vector(rows * C), scale = random.vector(C), bias = random.vector(C);
  std::vector<double> mean(C), variance(C), dx(x.size()), dscale(C), dbias(C);
  std::vector<float> factor(C);
  for (int64_t c = 0; c < C; ++c) {
    for (int64_t r = 0; r < rows; ++r) mean[c] += double(x[r * C + c]) / double(rows);
    for (int64_t r = 0; r < rows; ++r) variance[c] += std::pow(double(x[r * C + c]) - mean[c], 2) / double(rows);
    const double inverse = 1 / std::sqrt(variance[c] + 1e-5);
    factor[c] = static_cast<float>(double(scale[c]) * inverse);
    auto passed = [&](int64_t r) {
      const float y = (x[r * C + c] - static_cast<float>(mean[c])) * factor[c] + bias[c];
      const bool passes =
          t.passes == BatchNormGate::Passes::above ? y > 0.1F : t.passes == BatchNormGate::Passes::always || !(y < -0.5F || y > 0.6F);
      return passes ? double(dy[r * C + c]) : 0.0;
    };
    for (int64_t r = 0; r < rows; ++r) {
      dbias[c] += passed(r);
      dscale[c] += passed(r) * (double(x[r * C + c]) - mean[c]) * inverse;
    }
    for (int64_t r = 0; r < rows; ++r)
      dx[r * C + c] = double(scale[c]) * inverse *
                      (passed(r) - dbias[c] / double(rows) - (double(x[r * C + c]) - mean[c]) * inverse * dscale[c] / double(rows));
  }
  ThreadPool threads(3);
  std::vector<float> before;
  for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
    std::vector<float> m(C), v(C), inverse(C), ours(x.size()), ds(C), db(C), image = x;
    std::vector<double> scratch(batch_norm_gradient_nhwc_scratch_bytes(rows, C, t.is_computed) / sizeof(double) + 8);
    moments_nhwc(rows, C, x.data(), m.data(), v.data(), scratch.data(), pool);
    test::expect_near(m, mean, 1e-6);
    test::expect_near(v, variance, 1e-5);
    std::vector<float> of_mean(C);
    for (int64_t c = 0; c < C; ++c) inverse[c] = 1 / std::sqrt(v[c] + 1e-5F), of_mean[c] = static_cast<float>(mean[c]);
    BatchNormGate gate{t.passes, t.passes == BatchNormGate::Passes::above ? 0.1F : -0.5F, 0.6F, factor.data(), bias.data()};
    Rows gradient(dy, C, t.is_computed);
    if (t.is_computed)
      for (float d : dy) gradient.halves.push_back(d / 2);
    float* to = t.in_place ? image.data() : ours.data();
    batch_norm_gradient_nhwc(rows, C, gradient, t.is_computed, gate, image.data(), scale.data(), of_mean.data(), inverse.data(), to,
                             ds.data(), db.data(), scratch.data(), pool);
    if (t.in_place) ours = image;
    test::expect_near(ours, dx, 1e-4);  // with one or two rows, the deviation is nearly 0
    test::expect_near(ds, dscale, 5e-5);
    test::expect_near(db, dbias, 2e-5);
    if (pool) {
      EXPECT_EQ(ours, before);
    }
    before = ours;
    std::vector<float> sums(C);
    batch_norm_gradient_nhwc(rows, C, gradient, t.is_computed, gate, x.data(), scale.data(), of_mean.data(), inverse.data(), nullptr,
                             sums.data(), nullptr, scratch.data(), pool);
    EXPECT_EQ(sums, ds) << "without dx";
  }
}

TEST(BatchNormNhwc, EqualsDoubleForAnyNumberOfRowsAndChannels) {
  Random random(51);
  for (int64_t rows : {1, 2, 63, 64, 65, 500, 5000})
    for (int64_t C : {1, 3, 16, 70, 130}) check(random, {rows, C});
  check(random, {3000, 20, 30});
}

TEST(BatchNormNhwc, GradientsPassWhereAnActivationDoes) {
  Random random(52);
  for (auto passes : {BatchNormGate::Passes::above, BatchNormGate::Passes::within})
    for (int64_t rows : {64, 65, 500, 5000})
      for (int64_t C : {1, 3, 16, 70, 130}) check(random, {.rows = rows, .C = C, .passes = passes, .in_place = rows % 2 == 1});
}

TEST(BatchNormNhwc, GradientsThatAreComputedRowByRow) {
  Random random(53);
  for (bool in_place : {false, true})
    for (int64_t rows : {1, 65, 5000})
      for (int64_t C : {3, 16, 70}) check(random, {.rows = rows, .C = C, .is_computed = true, .in_place = in_place});
}

}  // namespace
}  // namespace treadle::kernels
