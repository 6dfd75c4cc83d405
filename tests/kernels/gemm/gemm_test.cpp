#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

using test::expect_near;
using test::Random;

// Computes C = f(alpha A B + beta bias + residual) in double, element by element.
template <typename T>
std::vector<T> reference(int64_t M, int64_t N, int64_t K, const T* A, int64_t a_row, int64_t a_col, const T* B, int64_t b_row,
                         int64_t b_col, const Epilogue<T>& e) {
  std::vector<T> C(static_cast<size_t>(M * N));
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += double(A[m * a_row + k * a_col]) * double(B[k * b_row + n * b_col]);
      sum *= double(e.alpha);
      if (e.bias) sum += double(e.beta) * double(e.bias[m * e.bias_row + n * e.bias_col]);
      if (e.residual) sum += double(e.residual[m * e.residual_row + n]);
      if (e.activation == Unary::relu) sum = std::max(sum, 0.0);
      if (e.activation == Unary::clip) sum = std::min(std::max(sum, double(e.a)), double(e.b));
      if (e.activation == Unary::tanh) sum = std::tanh(sum);
      C[m * N + n] = static_cast<T>(sum);
    }
  }
  return C;
}

template <typename T>
void random_packed_products(double tolerance) {
  Random random(3);
  for (int round = 0; round < 150; ++round) {
    const int64_t M = random.integer(1, round % 10 == 0 ? 250 : 20), N = random.integer(1, 150), K = random.integer(0, 70);
    const bool a_transposed = random.coin(), b_transposed = random.coin();
    const int64_t lda = (a_transposed ? M : K) + random.integer(0, 3), ldb = (b_transposed ? K : N) + random.integer(0, 3),
                  ldc = N + random.integer(0, 3);
    const auto A = random.vector<T>((a_transposed ? K : M) * lda), B = random.vector<T>((b_transposed ? N : K) * ldb),
               bias = random.vector<T>(M * N), residual = random.vector<T>(M * N);
    Epilogue<T> e;
    if (random.coin()) e.alpha = T(0.5);
    if (random.coin()) {
      e.bias = bias.data();
      e.bias_row = random.coin() ? random.coin() ? N : 1 : 0;
      e.bias_col = e.bias_row == 1 ? 0 : 1;
      if (random.coin()) e.beta = T(-2);
    }
    if (random.coin()) e.residual = residual.data(), e.residual_row = N;
    if (random.coin()) e.activation = random.coin() ? Unary::relu : Unary::clip, e.a = -0.25f, e.b = 0.75f;
    const int64_t a_row = a_transposed ? 1 : lda, a_col = a_transposed ? lda : 1;
    const auto expected = reference(M, N, K, A.data(), a_row, a_col, B.data(), b_transposed ? 1 : ldb, b_transposed ? ldb : 1, e);

    const T guard = T(123);
    std::vector<T> C(static_cast<size_t>(M * ldc), guard);
    const auto packed = pack_b(B.data(), K, N, ldb, b_transposed);
    gemm<T>(M, {A.data(), a_row, a_col}, packed.view, C.data(), ldc, e, nullptr);
    std::vector<T> tight;
    for (int64_t m = 0; m < M; ++m) {
      tight.insert(tight.end(), C.begin() + m * ldc, C.begin() + m * ldc + N);
      for (int64_t n = N; n < ldc; ++n) ASSERT_EQ(C[m * ldc + n], guard) << "wrote past a row";
    }
    expect_near(tight, expected, tolerance);
    PackedB<T> backwards = packed.view;
    backwards.backwards = true;
    std::vector<T> again(C.size(), guard);
    gemm<T>(M, {A.data(), a_row, a_col}, backwards, again.data(), ldc, e, nullptr);
    ASSERT_EQ(again, C) << "other bits, last columns first";

    // Computes the same product with a B that is packed during the run, or read unpacked.
    GemmShape shape{.M = M, .N = N, .K = K, .a_row = a_row, .a_col = a_col, .ldb = ldb, .b_transposed = b_transposed, .ldc = N};
    std::vector<char> memory(gemm_scratch_bytes<T>(shape, 1) + 64);
    std::vector<T> direct(static_cast<size_t>(M * N), guard);
    gemm_batched(shape, {}, A.data(), B.data(), direct.data(), e, memory.data(), 1, nullptr);
    expect_near(direct, expected, tolerance);

    // The residual may be C itself.
    if (e.residual != nullptr) {
      std::vector<T> in_place = residual;
      e.residual = in_place.data();
      gemm_batched(shape, {}, A.data(), B.data(), in_place.data(), e, memory.data(), 1, nullptr);
      expect_near(in_place, expected, tolerance);
    }
  }
}

TEST(Gemm, Float32EqualsTheDoubleReference) { random_packed_products<float>(1e-5); }
TEST(Gemm, Float64EqualsTheReference) { random_packed_products<double>(1e-13); }

TEST(Gemm, LongSumsStayAccurate) {
  Random random(5);
  const int64_t M = 7, N = 70, K = 3000;
  const auto A = random.vector(M * K), B = random.vector(K * N);
  const auto expected = reference<float>(M, N, K, A.data(), K, 1, B.data(), N, 1, {});
  std::vector<float> C(M * N);
  gemm<float>(M, {A.data(), K, 1}, pack_b(B.data(), K, N, N, false).view, C.data(), N, {}, nullptr);
  expect_near(C, expected, 5e-5);
}

TEST(Gemm, OtherActivationsRunAfterTheTile) {
  Random random(6);
  const int64_t M = 100, N = 77, K = 9;
  const auto A = random.vector(M * K), B = random.vector(K * N), bias = random.vector(N);
  Epilogue<float> e{.bias = bias.data(), .activation = Unary::tanh};
  std::vector<float> C(M * N);
  gemm<float>(M, {A.data(), K, 1}, pack_b(B.data(), K, N, N, false).view, C.data(), N, e, nullptr);
  expect_near(C, reference<float>(M, N, K, A.data(), K, 1, B.data(), N, 1, e), 1e-5);
}

TEST(Gemm, BatchesBroadcast) {
  struct Case {
    std::vector<int64_t> a, b, c;
  };
  const std::vector<Case> cases = {{{}, {}, {}},
                                   {{3}, {3}, {3}},
                                   {{3}, {}, {3}},
                                   {{}, {4}, {4}},
                                   {{2, 3}, {3}, {2, 3}},
                                   {{2, 1}, {1, 3}, {2, 3}},
                                   {{2, 1, 4}, {3, 1}, {2, 3, 4}},
                                   {{2, 3, 1}, {2, 3, 5}, {2, 3, 5}},
                                   {{0}, {1}, {0}},
                                   {{1, 1}, {1}, {1, 1}}};
  Random random(7);
  for (const Case& c : cases) {
    for (int round = 0; round < 8; ++round) {
      const int64_t M = random.integer(1, 9), N = random.integer(1, 40), K = random.integer(1, 20);
      auto count = [](const std::vector<int64_t>& dims) {
        int64_t n = 1;
        for (int64_t d : dims) n *= d;
        return n;
      };
      const auto A = random.vector(count(c.a) * M * K), B = random.vector(count(c.b) * K * N);
      std::vector<float> C(static_cast<size_t>(count(c.c) * M * N)), packed_C = C;
      const BatchStrides batch = broadcast_batches(c.a, c.b, M * K, K * N, M * N);
      ASSERT_EQ(num_products(batch), count(c.c));
      for (int threads : {1, 4}) {
        GemmShape shape{.M = M, .N = N, .K = K, .a_row = K, .ldb = N, .ldc = N, .batch = num_products(batch)};
        std::vector<char> memory(gemm_scratch_bytes<float>(shape, threads) + 64);
        gemm_batched(shape, batch, A.data(), B.data(), C.data(), {}, memory.data(), threads, nullptr);
        if (count(c.b) == 1) gemm_batched(shape, batch, A.data(), pack_b(B.data(), K, N, N, false).view, packed_C.data(), {}, nullptr);
        for (int64_t i = 0; i < count(c.c); ++i) {
          // Returns the offset of the product in A or B, computed from its index in the batch.
          auto place = [&](const std::vector<int64_t>& dims) {
            int64_t rest = i, offset = 0, stride = 1;
            for (size_t d = 0; d < c.c.size(); ++d) {
              const int64_t at = rest % c.c[c.c.size() - 1 - d];
              rest /= c.c[c.c.size() - 1 - d];
              if (d >= dims.size()) break;
              const int64_t n = dims[dims.size() - 1 - d];
              offset += (n == 1 ? 0 : at) * stride;
              stride *= n;
            }
            return offset;
          };
          const auto expected = reference<float>(M, N, K, A.data() + place(c.a) * M * K, K, 1, B.data() + place(c.b) * K * N, N, 1, {});
          expect_near(std::vector<float>(C.begin() + i * M * N, C.begin() + (i + 1) * M * N), expected, 1e-5);
          if (count(c.b) == 1)
            expect_near(std::vector<float>(packed_C.begin() + i * M * N, packed_C.begin() + (i + 1) * M * N), expected, 1e-5);
        }
      }
    }
  }
}

// Gradients of weights for small batches have this form.
TEST(Gemm, FewTermsAreWrittenRowByRow) {
  test::Random random(18);
  ThreadPool threads(2);
  for (int64_t K : {1, 2, 3, 4})
    for (int64_t M : {5, 37})
      for (int64_t N : {7, 256, 261, 1000})
        for (bool a_transposed : {false, true}) {
          const int64_t dims[] = {2}, one[] = {1};
          const auto A = random.vector(2 * M * K), B = random.vector(K * N);
          const BatchStrides batch = broadcast_batches(dims, one, M * K, K * N, M * N);
          const int64_t a_row = a_transposed ? 1 : K, a_col = a_transposed ? M : 1;
          const GemmShape shape{.M = M, .N = N, .K = K, .a_row = a_row, .a_col = a_col, .ldb = N, .ldc = N, .batch = 2};
          std::vector<float> C(static_cast<size_t>(2 * M * N), 77.0F);
          std::vector<char> scratch(gemm_scratch_bytes<float>(shape, 2) + 64);
          gemm_batched(shape, batch, A.data(), B.data(), C.data(), {}, scratch.data(), 2, &threads);
          for (int64_t i : {0, 1}) {
            const auto expected = reference<float>(M, N, K, A.data() + i * M * K, a_row, a_col, B.data(), N, 1, {});
            expect_near(std::vector<float>(C.begin() + i * M * N, C.begin() + (i + 1) * M * N), expected, 1e-6);
          }
        }
}

// A transposed A, as in gradients of weights, is first copied to contiguous memory: transposed, or (if all panels of B have the full width)
// in blocks of rows.
TEST(Gemm, LargeTransposedAIsBroughtTogether) {
  test::Random random(17);
  ThreadPool threads(3);
  for (int64_t batch : {1, 3}) {
    for (int64_t N : {192, 200, 256}) {
      for (int64_t K : {70, 1300}) {
        const int64_t M = 131;
        const auto A = random.vector(batch * M * K), B = random.vector(batch * K * N), residual = random.vector(M * N);
        GemmShape shape{.M = M, .N = N, .K = K, .a_row = 1, .a_col = M, .ldb = N, .ldc = N, .batch = batch};
        const int64_t dims[] = {batch};
        const BatchStrides strides = broadcast_batches(dims, dims, M * K, K * N, M * N);
        std::vector<double> expected(static_cast<size_t>(batch * M * N));
        for (int64_t i = 0; i < batch; ++i)
          for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
              double sum = double(residual[m * N + n]);
              for (int64_t k = 0; k < K; ++k) sum += double(A[i * M * K + k * M + m]) * double(B[(i * K + k) * N + n]);
              expected[(i * M + m) * N + n] = 1 / (1 + std::exp(-sum));
            }
        Epilogue<float> epilogue{.residual = residual.data(), .residual_row = N, .activation = Unary::sigmoid};
        for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &threads}) {
          const int max_threads = pool ? 3 : 1;
          std::vector<float> C(expected.size());
          std::vector<char> scratch(gemm_scratch_bytes<float>(shape, max_threads) + 64);
          gemm_batched<float>(shape, strides, A.data(), B.data(), C.data(), epilogue,
                              reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63}), max_threads,
                              pool);
          for (size_t i = 0; i < C.size(); ++i) ASSERT_NEAR(C[i], expected[i], 2e-5) << i << " of " << M << "x" << N << "x" << K;
        }
      }
    }
  }
}

TEST(Gemm, BatchesThatDoNotBroadcastAreRefused) {
  const int64_t a[] = {2}, b[] = {3};
  EXPECT_THROW(broadcast_batches(a, b, 1, 1, 1), Error);
}

TEST(Gemm, EmptyMatricesAreFine) {
  gemm<float>(0, {nullptr, 0, 1}, {0, 0, nullptr}, nullptr, 0, {}, nullptr);
  float c[4] = {1, 2, 3, 4};
  gemm<float>(2, {nullptr, 0, 1}, pack_b<float>(nullptr, 0, 2, 2, false).view, c, 2, {}, nullptr);
  for (float v : c) EXPECT_EQ(v, 0);
}

TEST(Gemm, NaNInAPassesARelu) {
  const float A[] = {NAN}, B[] = {1};
  float C[] = {0};
  Epilogue<float> e{.activation = Unary::relu};
  gemm<float>(1, {A, 1, 1}, pack_b(B, 1, 1, 1, false).view, C, 1, e, nullptr);
  EXPECT_TRUE(std::isnan(C[0]));
}

// 0.1f is no power of two. A single float32 sum over the whole row would have an error of a thousandth.
TEST(Gemm, RoundsLongSumsLikeShortOnes) {
  constexpr int64_t K = 1'000'000, N = 3;
  const std::vector<float> B(static_cast<size_t>(K * N), 0.1F);
  for (const int64_t M : {1, 2, 7}) {
    const std::vector<float> A(static_cast<size_t>(M * K), 1.0F);
    std::vector<float> C(static_cast<size_t>(M * N));
    gemm<float>(M, {A.data(), K, 1}, pack_b(B.data(), K, N, N, false).view, C.data(), N, {}, nullptr);
    for (const float sum : C) EXPECT_NEAR(sum, 0.1F * static_cast<double>(K), 2.0);
  }
}

}  // namespace
}  // namespace treadle::kernels
