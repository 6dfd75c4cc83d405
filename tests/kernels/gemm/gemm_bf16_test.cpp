#include "kernels/gemm/gemm_bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gemm/tile_bf16.h"
#include "tests/kernels/bf16_reference.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::as_read;
using test::nearest_bf16;
using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Packed {
  std::vector<uint32_t> words;
  PackedBf16 view;
  Packed(const std::vector<float>& B, int64_t K, int64_t N, int64_t ldb, bool transposed, Bf16Form form)
      : words(static_cast<size_t>(packed_bf16_size(K, N, form))), view(pack_bf16(B.data(), K, N, ldb, transposed, form, words.data())) {}
};

std::vector<float> multiply(int64_t M, const std::vector<float>& A, int64_t lda, const PackedBf16& B, int64_t ldc, const Epilogue<float>& e,
                            bool emulated, int threads, const std::vector<float>& before) {
  ThreadPool pool(threads);
  std::vector<char> scratch(gemm_bf16_scratch_bytes(M, B.K, B.form) + 64);
  std::vector<float> C = before;
  gemm_bf16(M, A.data(), lda, B, C.data(), ldc, e, scratch.data(), &pool, emulated);
  return C;
}

// Compares products by the processor's instructions and emulated ones with double precision. Operands are rounded first, so results differ
// only by the rounding of float32 sums.
void products_equal_the_definition(Bf16Form form, int rounds, int64_t longest) {
  Random random(71 + static_cast<uint32_t>(form));
  for (int round = 0; round < rounds; ++round) {
    const int64_t M = random.integer(1, round % 10 == 0 ? 220 : 20), N = random.integer(1, 150),
                  K = random.integer(0, round % 7 == 0 ? longest : 70);
    const bool transposed = random.coin();
    const int64_t lda = K + random.integer(0, 3), ldb = (transposed ? K : N) + random.integer(0, 3), ldc = N + random.integer(0, 3);
    auto A = random.vector(M * lda), B = random.vector((transposed ? N : K) * ldb);
    const auto bias = random.vector(N), residual = random.vector(M * ldc);
    Epilogue<float> e;
    if (random.coin()) e.bias = bias.data();
    if (random.coin()) e.residual = residual.data(), e.residual_row = ldc;
    const Unary activations[] = {Unary::none, Unary::relu, Unary::clip, Unary::tanh};
    e.activation = activations[random.integer(0, 3)], e.a = -0.25F, e.b = 0.75F;
    const Packed packed(B, K, N, ldb, transposed, form);
    const auto a = as_read(A, form), b = as_read(B, form);
    std::vector<double> expected(static_cast<size_t>(M * ldc), 123), size(expected.size(), 1);
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0, magnitude = 1;
        for (int64_t k = 0; k < K; ++k) {
          const double product = double{a[m * lda + k]} * double{transposed ? b[n * ldb + k] : b[k * ldb + n]};
          sum += product, magnitude += std::abs(product);
        }
        if (e.bias) sum += bias[n];
        if (e.residual) sum += residual[m * ldc + n];
        if (e.activation == Unary::relu) sum = std::max(sum, 0.0);
        if (e.activation == Unary::clip) sum = std::min(std::max(sum, -0.25), 0.75);
        if (e.activation == Unary::tanh) sum = std::tanh(sum);
        expected[m * ldc + n] = sum, size[m * ldc + n] = magnitude;
      }
    }
    // The form `three` omits the product of the low parts and rounds these parts, which gives an error of about 2^-16 of each product.
    const double tolerance = form == Bf16Form::three ? 4e-5 : 1e-6;
    for (bool emulated : {false, true}) {
      const std::vector<float> before(expected.size(), 123);
      const auto C = multiply(M, A, lda, packed.view, ldc, e, emulated, 1, before);
      for (size_t i = 0; i < C.size(); ++i)
        ASSERT_NEAR(C[i], expected[i], tolerance * size[i]) << i << " of " << M << " " << N << " " << K << (emulated ? " emulated" : "");
      ASSERT_EQ(C, multiply(M, A, lda, packed.view, ldc, e, emulated, 3, before)) << "other bits with 3 threads";
    }
  }
}

TEST(GemmBf16, MultipliesRoundedOperandsAndSumsInFloat32) { products_equal_the_definition(Bf16Form::one, 120, 3000); }
TEST(GemmBf16, MultipliesOperandsRoundedToFloat16) { products_equal_the_definition(Bf16Form::float16, 80, 3000); }
TEST(GemmBf16, ThreeProductsOfSplitOperandsAreNearlyExact) { products_equal_the_definition(Bf16Form::three, 80, 3000); }

// No operand is packed before the run. Either operand may be transposed, and matrices of a batch may be broadcast.
TEST(GemmBf16, BatchesOfComputedMatricesEqualTheDefinition) {
  Random random(74);
  for (int round = 0; round < 120; ++round) {
    const int64_t M = random.integer(1, 70), N = random.integer(1, 150), K = random.integer(0, 90), batch = random.integer(1, 9);
    const bool a_turned = random.coin(), b_turned = random.coin(), b_shared = random.coin(), adds = batch == 1 && random.coin();
    const auto A = nearest_bf16(random.vector(batch * M * K)), B = nearest_bf16(random.vector((b_shared ? 1 : batch) * K * N)),
               residual = random.vector(M * N);
    const GemmShape shape{.M = M,
                          .N = N,
                          .K = K,
                          .a_row = a_turned ? 1 : K,
                          .a_col = a_turned ? M : 1,
                          .ldb = b_turned ? K : N,
                          .b_transposed = b_turned,
                          .ldc = N,
                          .batch = batch};
    const BatchStrides strides{.rank = 1, .dims = {batch}, .a = {M * K}, .b = {b_shared ? 0 : K * N}, .c = {M * N}};
    Epilogue<float> e;
    e.alpha = 0.5F;
    std::vector<float> first;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<char> scratch(gemm_bf16_batched_scratch_bytes(shape, Bf16Form::one, threads) + 64);
      void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
      std::vector<float> C(static_cast<size_t>(batch * M * N), 123);
      if (adds) C = residual, e.residual = C.data(), e.residual_row = N;  // the residual is C itself
      gemm_bf16_batched(shape, strides, A.data(), B.data(), C.data(), e, Bf16Form::one, aligned, threads, &pool);
      for (int64_t i = 0; i < batch * M * N; ++i) {
        const int64_t at = i / (M * N), m = i / N % M, n = i % N;
        double sum = adds ? double{residual[static_cast<size_t>(i)]} : 0;
        for (int64_t k = 0; k < K; ++k)
          sum += 0.5 * double{A[static_cast<size_t>(at * M * K + (a_turned ? k * M + m : m * K + k))]} *
                 double{B[static_cast<size_t>((b_shared ? 0 : at * K * N) + (b_turned ? n * K + k : k * N + n))]};
        ASSERT_NEAR(C[static_cast<size_t>(i)], sum, 2e-5) << "round " << round << ", element " << i << ", threads " << threads;
      }
      if (threads == 1)
        first = C;
      else
        ASSERT_EQ(C, first) << "other bits with 3 threads, round " << round;
    }
  }
}

TEST(GemmBf16, DeepPanelsAreSummedInParts) {
  Random random(73);
  for (Bf16Form form : {Bf16Form::one, Bf16Form::three, Bf16Form::float16}) {
    const int64_t M = 13, N = 70, K = 9001;
    const auto A = random.vector(M * K), B = random.vector(K * N), residual = random.vector(M * N);
    Epilogue<float> e;
    e.activation = Unary::relu;
    const Packed packed(B, K, N, N, false, form);
    const auto a = as_read(A, form), b = as_read(B, form);
    for (bool emulated : {false, true}) {
      e.residual = residual.data(), e.residual_row = N;
      const auto C = multiply(M, A, K, packed.view, N, e, emulated, 1, std::vector<float>(M * N, 5));
      for (int64_t i = 0; i < M * N; ++i) {
        double sum = residual[i];
        for (int64_t k = 0; k < K; ++k) sum += double{a[i / N * K + k]} * b[k * N + i % N];
        ASSERT_NEAR(C[i], std::max(sum, 0.0), 2e-3) << i;
      }
    }
  }
}

TEST(GemmBf16, RoundsTiesToEvenAndKeepsNanAndInfinity) {
  const float largest = std::numeric_limits<float>::max(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {1.0F,       1.00390625F, 1.01171875F, -3.14159F, 0.0F, -0.0F, 1e-30F, largest, -largest,  kInfinity,
                                     -kInfinity, nan,         65504.0F,    3.3e38F,   0.1F, 7e-5F, 2.5F,   1e10F,   12345.678F};
  std::vector<uint16_t> bits(values.size()), rest(values.size());
  to_bf16(values.data(), static_cast<int64_t>(values.size()), bits.data(), rest.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const float hi = std::bit_cast<float>(uint32_t{bits[i]} << 16), lo = std::bit_cast<float>(uint32_t{rest[i]} << 16);
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(hi));
    } else if (std::isinf(values[i]) || std::abs(values[i]) == largest) {
      EXPECT_EQ(hi, std::copysign(kInfinity, values[i])) << "the nearest bfloat16 of the largest float is infinity";
    } else {
      EXPECT_EQ(hi, nearest_bf16(values[i])) << values[i];
      EXPECT_NEAR(hi + lo, values[i], std::abs(values[i]) * 0x1p-16F);
    }
    if (!std::isfinite(hi)) {
      EXPECT_EQ(lo, 0);
    }
  }
}

// Tests the limits of float16: the largest number, numbers that round to infinity, subnormal numbers, and numbers that round to zero. Sums
// are float32.
TEST(GemmBf16, Float16HasItsOwnRange) {
  const std::vector<float> A = {65504.0F, 65519.0F, 65520.0F, -1e6F, 6.1e-5F, 5.96e-8F, 2.9e-8F, 1.00048828125F, 1.0004882812F};
  const int64_t M = static_cast<int64_t>(A.size());
  const std::vector<float> B(33, 1024.0F);
  for (bool transposed : {false, true}) {
    const Packed packed(B, 1, 33, transposed ? 1 : 33, transposed, Bf16Form::float16);
    const auto C = multiply(M, A, 1, packed.view, 33, {}, false, 1, std::vector<float>(static_cast<size_t>(M * 33)));
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < 33; ++n)
        EXPECT_EQ(C[static_cast<size_t>(m * 33 + n)], 1024 * test::nearest_f16(A[static_cast<size_t>(m)])) << A[static_cast<size_t>(m)];
  }
}

TEST(GemmBf16, NanAndInfinityArriveWhereTheDefinitionHasThem) {
  const int64_t M = 7, N = 33, K = 21;
  Random random(74);
  auto A = random.vector(M * K, 0.5, 1), B = random.vector(K * N, 0.5, 1);
  A[2 * K + 20] = kInfinity, A[4 * K] = std::numeric_limits<float>::quiet_NaN();
  for (Bf16Form form : {Bf16Form::one, Bf16Form::three, Bf16Form::float16}) {
    const Packed packed(B, K, N, N, false, form);
    for (bool emulated : {false, true}) {
      const auto C = multiply(M, A, K, packed.view, N, {}, emulated, 1, std::vector<float>(M * N));
      for (int64_t i = 0; i < M * N; ++i) {
        if (i / N == 4) {
          EXPECT_TRUE(std::isnan(C[i]));
        } else if (i / N == 2) {
          EXPECT_TRUE(form == Bf16Form::three ? !std::isfinite(C[i]) : C[i] == kInfinity);
        } else {
          EXPECT_TRUE(std::isfinite(C[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
