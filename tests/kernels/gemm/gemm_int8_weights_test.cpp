#include "kernels/gemm/gemm_int8_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

struct Packed {
  std::vector<int8_t> data;
  std::vector<float> scales;
  PackedInt8Weights view;
  Packed(const std::vector<float>& B, int64_t K, int64_t N, int64_t ldb, bool transposed)
      : data(static_cast<size_t>(packed_int8_size(K, N))),
        scales(static_cast<size_t>(packed_int8_scales(N))),
        view(pack_int8_weights(B.data(), K, N, ldb, transposed, data.data(), scales.data())) {}
};

// Compares with double. Weights are rounded to multiples of 1/127 of the largest one in their column, so results differ only by the
// rounding of float32 sums.
TEST(GemmInt8Weights, MultipliesByRoundedWeights) {
  Random random(91);
  for (int round = 0; round < 120; ++round) {
    const int64_t M = random.integer(1, round % 10 == 0 ? 220 : 9), N = random.integer(1, 150),
                  K = random.integer(0, round % 7 == 0 ? 900 : 70);
    const bool transposed = random.coin();
    const int64_t lda = K + random.integer(0, 3), ldb = (transposed ? K : N) + random.integer(0, 3), ldc = N + random.integer(0, 3);
    const auto A = random.vector(M * lda), B = random.vector((transposed ? N : K) * ldb), bias = random.vector(N),
               residual = random.vector(M * ldc);
    auto weight = [&](int64_t k, int64_t n) { return B[transposed ? n * ldb + k : k * ldb + n]; };
    Epilogue<float> e;
    if (random.coin()) e.bias = bias.data();
    if (random.coin()) e.residual = residual.data(), e.residual_row = ldc;
    if (random.coin()) e.activation = random.coin() ? Unary::relu : Unary::tanh;
    std::vector<float> expected(static_cast<size_t>(M * ldc), 123);
    const Packed packed(B, K, N, ldb, transposed);
    for (int64_t n = 0; n < N; ++n) {
      float largest = 0;
      for (int64_t k = 0; k < K; ++k) largest = std::max(largest, std::abs(weight(k, n)));
      // A short column may consist of multiples of a larger step.
      const float step = K < 5 ? packed.scales[n] : largest / 127;
      for (int64_t k = 0; k < K && step > 0; ++k)
        ASSERT_NEAR(step * std::nearbyint(weight(k, n) / step), weight(k, n), largest / 253) << "weight " << k << " of column " << n;
      for (int64_t m = 0; m < M; ++m) {
        double sum = e.bias ? bias[n] : 0;
        for (int64_t k = 0; k < K && step > 0; ++k) sum += double{A[m * lda + k]} * step * std::nearbyint(weight(k, n) / step);
        if (e.residual) sum += residual[m * ldc + n];
        expected[m * ldc + n] = static_cast<float>(e.activation == Unary::relu   ? std::max(sum, 0.0)
                                                   : e.activation == Unary::tanh ? std::tanh(sum)
                                                                                 : sum);
      }
    }
    std::vector<float> first;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<float> C(expected.size(), 123);
      gemm_int8_weights(M, A.data(), lda, packed.view, C.data(), ldc, e, &pool);
      test::expect_near(C, expected, 3e-6 * std::sqrt(static_cast<double>(K) + 1));
      if (first.empty()) first = C;
      ASSERT_EQ(first, C) << "other bits with 3 threads";
    }
  }
}

TEST(GemmInt8Weights, ColumnsOfZerosGiveZeroAndThoseWithoutANumberNan) {
  const int64_t M = 2, N = 20, K = 5;
  Random random(92);
  const auto A = random.vector(M * K);
  auto B = random.vector(K * N);
  for (int64_t k = 0; k < K; ++k) B[k * N + 3] = 0;
  B[2 * N + 7] = std::numeric_limits<float>::quiet_NaN(), B[19] = -std::numeric_limits<float>::infinity();
  const Packed packed(B, K, N, N, false);
  std::vector<float> C(M * N);
  gemm_int8_weights(M, A.data(), K, packed.view, C.data(), N, {}, nullptr);
  for (int64_t i = 0; i < M * N; ++i) {
    if (i % N == 3) {
      EXPECT_EQ(C[i], 0);
    }
    EXPECT_EQ(std::isnan(C[i]), i % N == 7 || i % N == 19) << i;
  }
}

TEST(GemmInt8Weights, WeightsThatWereBytesStayWhatTheyAre) {
  Random random(92);
  for (int round = 0; round < 40; ++round) {
    const bool transposed = random.coin();
    const int64_t K = random.integer(2, 300), N = random.integer(1, 70), M = 3, ldb = transposed ? K : N;
    std::vector<float> B(K * N);
    const auto A = random.vector(M * K);
    for (int64_t n = 0; n < N; ++n) {
      const float scale = random.vector(1, 1e-4, 0.5)[0];
      const int64_t most = random.integer(0, 128);  // with one scale per tensor, most columns do not contain the largest code
      for (int64_t k = 0; k < K; ++k)
        B[transposed ? n * K + k : k * N + n] = scale * static_cast<float>(random.integer(-most, std::min<int64_t>(most, 127)));
    }
    ASSERT_TRUE(are_int8_weights(B.data(), K, N, ldb, transposed)) << round;
    const Packed packed(B, K, N, ldb, transposed);
    std::vector<float> C(M * N);
    gemm_int8_weights(M, A.data(), K, packed.view, C.data(), N, {}, nullptr);
    for (int64_t i = 0; i < M * N; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double product = double{A[i / N * K + k]} * B[transposed ? i % N * K + k : k * N + i % N];
        sum += product, magnitude += std::abs(product);
      }
      ASSERT_NEAR(C[i], sum, 1e-6 * magnitude + 1e-30) << i << " of round " << round;
    }
  }
}

TEST(GemmInt8Weights, OtherWeightsAreNotTakenForBytes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> others = {{1, 2, 2.01F}, {1, 127, -129},     {1e-3F, 0.2F},
                                                  {1, infinity}, {1, std::nanf("")}, {1, 1.0001F}};
  for (const auto& column : others) EXPECT_FALSE(are_int8_weights(column.data(), static_cast<int64_t>(column.size()), 1, 1, false));
  const std::vector<float> fits = {0, -128, 127, 3};
  EXPECT_TRUE(are_int8_weights(fits.data(), 4, 1, 1, false));
  // Tests sparse columns, which begin with zeros or contain nothing else, and a column of infinities.
  std::vector<float> sparse(60, 0);
  EXPECT_TRUE(are_int8_weights(sparse.data(), 30, 2, 2, false));
  sparse[58] = 0.25F, sparse[59] = 0.5F;
  EXPECT_TRUE(are_int8_weights(sparse.data(), 30, 2, 2, false));
  sparse[56] = 0.1F, sparse[54] = 0.03001F;
  EXPECT_FALSE(are_int8_weights(sparse.data(), 30, 2, 2, false));
  const std::vector<float> numberless(30, infinity);
  EXPECT_FALSE(are_int8_weights(numberless.data(), 30, 1, 1, false));
  const Packed packed(numberless, 30, 1, 1, false);
  EXPECT_TRUE(std::isnan(packed.scales[0]));
  std::vector<float> late(40, 0);  // the first elements are zeros, so a check of these alone finds nothing wrong
  late[30] = infinity;
  EXPECT_FALSE(are_int8_weights(late.data(), 40, 1, 1, false));
}

}  // namespace
}  // namespace treadle::kernels
