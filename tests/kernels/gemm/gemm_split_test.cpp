#include "kernels/gemm/gemm_split.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

#define TREADLE_NEEDS_TILES() \
  if (!has_split_tiles()) GTEST_SKIP() << "the processor has no AMX"

/// The matrices of a product, and the expected result in double.
struct Product {
  GemmShape shape;
  std::vector<float> A, B, before;
  Epilogue<float> epilogue;
  std::vector<float> bias, residual;

  Product(int64_t M, int64_t N, int64_t K, bool a_transposed, bool b_transposed, Random& random) {
    const int64_t lda = (a_transposed ? M : K) + random.integer(0, 3);
    shape = {.M = M,
             .N = N,
             .K = K,
             .a_row = a_transposed ? 1 : lda,
             .a_col = a_transposed ? lda : 1,
             .ldb = (b_transposed ? K : N) + random.integer(0, 3),
             .b_transposed = b_transposed,
             .ldc = N + random.integer(0, 3)};
    A = random.vector((a_transposed ? K : M) * lda), B = random.vector((b_transposed ? N : K) * shape.ldb);
    before = random.vector(M * shape.ldc);
  }
  float& a(int64_t m, int64_t k) { return A[static_cast<size_t>(m * shape.a_row + k * shape.a_col)]; }
  float& b(int64_t k, int64_t n) { return B[static_cast<size_t>(shape.b_transposed ? n * shape.ldb + k : k * shape.ldb + n)]; }

  std::vector<float> run(int threads) const {
    EXPECT_EQ(pays_to_split(shape), has_split_tiles()) << shape.M << " " << shape.N << " " << shape.K;
    ThreadPool pool(threads);
    std::vector<float> C = before;
    Epilogue<float> e = epilogue;
    if (e.residual == before.data()) e.residual = C.data();
    std::vector<char> room(gemm_scratch_bytes<float>(shape, threads) + 64);
    void* scratch = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    gemm_batched<float>(shape, {}, A.data(), B.data(), C.data(), e, scratch, threads, &pool);
    return C;
  }

  /// Compares each element with its definition. @param tolerance  relative to the sum of the products' magnitudes
  void expect_right(double tolerance, int threads = 1) {
    const std::vector<float> C = run(threads);
    for (int64_t m = 0; m < shape.M; ++m) {
      for (int64_t n = 0; n < shape.N; ++n) {
        double sum = 0, size = 1;
        for (int64_t k = 0; k < shape.K; ++k) sum += double{a(m, k)} * double{b(k, n)}, size += std::abs(double{a(m, k)} * double{b(k, n)});
        sum *= epilogue.alpha;
        if (epilogue.bias) sum += double{epilogue.beta} * double{bias[static_cast<size_t>(m * epilogue.bias_row + n * epilogue.bias_col)]};
        if (epilogue.residual) sum += double{epilogue.residual[m * epilogue.residual_row + n]};
        if (epilogue.activation == Unary::relu) sum = std::max(sum, 0.0);
        if (epilogue.activation == Unary::tanh) sum = std::tanh(sum);
        const float got = C[static_cast<size_t>(m * shape.ldc + n)];
        if (std::isfinite(sum))
          ASSERT_NEAR(got, sum, tolerance * size) << m << " " << n << " of " << shape.M << " " << shape.N << " " << shape.K;
        else
          ASSERT_TRUE(std::isnan(sum) ? std::isnan(got) : got == static_cast<float>(sum)) << m << " " << n << ": " << got << " for " << sum;
      }
      for (int64_t n = shape.N; n < shape.ldc; ++n)
        ASSERT_EQ(C[static_cast<size_t>(m * shape.ldc + n)], before[static_cast<size_t>(m * shape.ldc + n)]) << "written behind a row";
    }
  }
};

TEST(GemmSplit, PartsAddUpToTheNumber) {
  TREADLE_NEEDS_TILES();
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const int64_t rows = random.integer(1, 16), terms = random.integer(1, 32);
    std::vector<float> numbers(static_cast<size_t>(rows * terms));
    float largest = 0;
    for (float& x : numbers) {
      const auto mantissa = static_cast<uint32_t>(random.integer(0, 0x7FFFFF)),
                 exponent = static_cast<uint32_t>(random.integer(127 - 100, 127 + 60));
      x = random.integer(0, 20) == 0 ? 0.0F : std::bit_cast<float>(mantissa | exponent << 23 | (random.coin() ? 0x80000000U : 0U));
      largest = std::max(largest, std::abs(x));
    }
    alignas(64) uint16_t a[kSplitTiles], b[kSplitTiles];
    auto part = [](const uint16_t* tiles, int64_t i, int64_t place) {
      return std::bit_cast<float>(static_cast<uint32_t>(tiles[i * kSplitRows * kSplitTerms + place]) << 16);
    };
    // Splits both A's rows and B's columns, each with terms stored contiguously and with terms stored apart.
    for (bool turned : {false, true}) {
      std::vector<float> from = numbers;
      if (turned)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t k = 0; k < terms; ++k) from[static_cast<size_t>(k * rows + r)] = numbers[static_cast<size_t>(r * terms + k)];
      const int64_t row = turned ? 1 : terms, term = turned ? rows : 1;
      ASSERT_EQ(split_a(from.data(), row, term, rows, terms, a), std::bit_cast<Magnitude>(largest));
      ASSERT_EQ(split_b(from.data(), term, row, terms, rows, b), std::bit_cast<Magnitude>(largest));
      for (int64_t r = 0; r < kSplitRows; ++r) {
        for (int64_t k = 0; k < kSplitTerms; ++k) {
          const float x = r < rows && k < terms ? numbers[static_cast<size_t>(r * terms + k)] : 0.0F;
          const int64_t in_a = r * kSplitTerms + k, in_b = k / 2 * 2 * kSplitRows + 2 * r + k % 2;
          ASSERT_EQ(part(a, 0, in_a) + part(a, 1, in_a) + part(a, 2, in_a), x) << r << " " << k;
          for (int64_t i = 0; i < 3; ++i) ASSERT_EQ(part(a, i, in_a), part(b, i, in_b)) << r << " " << k;
        }
      }
    }
    ASSERT_EQ(largest_magnitude(numbers.data(), terms, rows, terms), std::bit_cast<Magnitude>(largest));
  }
}

// Tests sizes at the edges of blocks, of chunks of terms and of rows that are split together; every epilogue; and several numbers of
// threads.
TEST(GemmSplit, ProductsEqualTheDefinition) {
  Random random(6);
  for (int round = 0; round < 36; ++round) {
    const int64_t M = random.integer(220, round % 6 == 0 ? 600 : 300), N = random.integer(200, 250),
                  K = random.integer(96, round % 5 == 0 ? 1100 : 150);
    Product p(M, N, K, random.coin(), random.coin(), random);
    Epilogue<float>& e = p.epilogue;
    if (random.coin()) e.alpha = 0.5F;
    p.bias = random.vector(M * N);
    if (random.coin()) {
      e.bias = p.bias.data();
      e.bias_row = random.coin() ? random.coin() ? N : 1 : 0, e.bias_col = e.bias_row == 1 ? 0 : 1;
      if (random.coin()) e.beta = -2;
    }
    p.residual = random.vector(M * N);
    if (random.coin()) e.residual = p.residual.data(), e.residual_row = N;
    if (random.coin()) e.residual = p.before.data(), e.residual_row = p.shape.ldc;  // the residual is C itself
    const Unary activations[] = {Unary::none, Unary::none, Unary::relu, Unary::tanh};
    e.activation = activations[random.integer(0, 3)];
    p.expect_right(1e-6);
    ASSERT_EQ(p.run(1), p.run(3)) << "other bits with 3 threads";
    if (HasFatalFailure()) return;
  }
}

// Compares the errors with those of the vector kernel, which computes products whose B is packed before the run.
TEST(GemmSplit, ErrorsAreNoLargerThanThoseOfFloat32Sums) {
  Random random(7);
  for (int64_t K : {64, 384, 1536, 5000}) {
    Product p(200, 200, K, false, false, random);
    p.shape.ldc = 200;
    const std::vector<float> C = p.run(1);
    std::vector<float> by_vectors(C.size());
    gemm_batched<float>(p.shape, {}, p.A.data(), pack_b(p.B.data(), K, 200, p.shape.ldb, false).view, by_vectors.data(), {}, nullptr);
    double split = 0, vectors = 0;
    for (int64_t m = 0; m < 200; ++m) {
      for (int64_t n = 0; n < 200; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += double{p.a(m, k)} * double{p.b(k, n)};
        split += std::pow(C[static_cast<size_t>(m * 200 + n)] - sum, 2),
            vectors += std::pow(by_vectors[static_cast<size_t>(m * 200 + n)] - sum, 2);
      }
    }
    EXPECT_LE(std::sqrt(split), 1.001 * std::sqrt(vectors)) << K;
  }
}

// Infinities, NaN, and numbers that are too large or too small to be split are in the first rows of A, in later ones, or in B.
TEST(GemmSplit, NumbersBeyondTheRangeOfPartsAreComputedByVectors) {
  Random random(8);
  for (int round = 0; round < 24; ++round) {
    const int64_t M = random.integer(260, 600), N = random.integer(190, 220), K = random.coin() ? 1100 : 128;
    Product p(M, N, K, random.coin(), random.coin(), random);
    if (random.coin()) p.epilogue.residual = p.before.data(), p.epilogue.residual_row = p.shape.ldc;
    p.bias = random.vector(M);
    if (random.coin()) p.epilogue.bias = p.bias.data(), p.epilogue.bias_row = 1, p.epilogue.bias_col = 0;
    const float values[] = {kInfinity, -kInfinity, kNaN, 0x1p100F, 3e38F, 0x1p31F};
    const int64_t k = random.integer(0, K - 1);
    (random.integer(0, 3) == 0 ? p.b(k, random.integer(0, N - 1)) : p.a(random.integer(0, M - 1), k)) = values[round % 6];
    p.expect_right(1e-6);
    if (HasFatalFailure()) return;
  }
}

// If only the parts of B are kept, they restore B for the vector kernel, which computes the rows that cannot be split.
TEST(GemmSplit, PartsAreEnough) {
  TREADLE_NEEDS_TILES();
  Random random(11);
  for (bool b_transposed : {false, true}) {
    Product p(300, 210, 130, false, b_transposed, random);
    p.a(40, 7) = kInfinity, p.a(290, 3) = kNaN;
    const GemmShape& s = p.shape;
    std::vector<uint16_t> room(split_b_bytes(s) / sizeof(uint16_t) + 32);
    auto* data = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
    SplitB split = split_b(s, p.B.data(), data, nullptr);
    split.whole = nullptr;
    std::vector<float> joined(static_cast<size_t>(s.K * s.N)), unpacked(joined.size());
    join_b(s, split, 0, s.N, joined.data(), s.N);
    unpack_b(pack_b(p.B.data(), s.K, s.N, s.ldb, b_transposed).view, unpacked.data());
    for (int64_t k = 0; k < s.K; ++k) {
      for (int64_t n = 0; n < s.N; ++n) {
        ASSERT_EQ(joined[static_cast<size_t>(k * s.N + n)], p.b(k, n)) << k << " " << n;
        ASSERT_EQ(unpacked[static_cast<size_t>(k * s.N + n)], p.b(k, n)) << k << " " << n;
      }
    }
    const std::vector<float> expected = p.run(1);  // the tests above compare run() with the definition
    std::vector<float> C = p.before;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      std::vector<char> scratch(gemm_split_scratch_bytes(s, threads) + 64);
      gemm_split(s, p.A.data(), split, C.data(), {}, scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64, threads,
                 &pool);
      for (size_t i = 0; i < C.size(); ++i) ASSERT_TRUE(C[i] == expected[i] || (std::isnan(C[i]) && std::isnan(expected[i]))) << i;
    }
  }
}

// Some terms of a deep product are too small to be split if one chunk is considered alone. The residual must nevertheless be added exactly
// once.
TEST(GemmSplit, SomeTermsMayBeSmall) {
  Random random(12);
  for (bool first : {false, true}) {
    Product p(300, 210, 1600, random.coin(), random.coin(), random);
    p.epilogue.residual = p.before.data(), p.epilogue.residual_row = p.shape.ldc;
    for (int64_t m = 32; m < 290; ++m)
      for (int64_t k = first ? 0 : 800; k < (first ? 800 : 1600); ++k) p.a(m, k) *= 1e-20F;
    p.expect_right(1e-6);
    p.epilogue.residual = nullptr;
    p.expect_right(1e-6);
  }
  for (int64_t K : {130, 1600}) {  // all terms of some rows are too small
    Product p(300, 210, K, random.coin(), random.coin(), random);
    p.epilogue.residual = p.before.data(), p.epilogue.residual_row = p.shape.ldc;
    for (int64_t m = 64; m < 96; ++m)
      for (int64_t k = 0; k < K; ++k) p.a(m, k) *= 1e-20F;
    p.expect_right(1e-6);
  }
}

TEST(GemmSplit, SmallNumbersKeepTheirBits) {
  Random random(9);
  for (const float scale : {1e-12F, 1e-20F, 1e-36F}) {
    Product p(250, 220, 90, random.coin(), random.coin(), random);
    for (float& x : p.A) x *= scale;
    std::vector<float> C = p.run(1);
    for (int64_t m = 0; m < 250; ++m) {
      for (int64_t n = 0; n < 220; ++n) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < 90; ++k)
          sum += double{p.a(m, k)} * double{p.b(k, n)}, size += std::abs(double{p.a(m, k)} * double{p.b(k, n)});
        ASSERT_NEAR(C[static_cast<size_t>(m * p.shape.ldc + n)], sum, 1e-6 * size) << scale;
      }
    }
  }
}

// One product of a batch with a shared B needs the vector kernel. Then the parts of B must be computed again for the next product.
TEST(GemmSplit, BatchesGoOnBehindAProductBeyondTheRange) {
  Random random(10);
  constexpr int64_t kProducts = 5, M = 220, N = 220, K = 64;
  const GemmShape shape{.M = M, .N = N, .K = K, .a_row = K, .ldb = N, .ldc = N, .batch = kProducts};
  const BatchStrides batch{.rank = 1, .dims = {kProducts}, .a = {M * K}, .b = {0}, .c = {M * N}};
  std::vector<float> A = random.vector(kProducts * M * K), B = random.vector(K * N);
  A[2 * M * K + 5 * K + 7] = kInfinity;
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::vector<float> C(static_cast<size_t>(kProducts * M * N));
    std::vector<char> room(gemm_scratch_bytes<float>(shape, threads) + 64);
    void* scratch = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    gemm_batched<float>(shape, batch, A.data(), B.data(), C.data(), {}, scratch, threads, &pool);
    for (int64_t row = 0; row < kProducts * M; ++row) {
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += double{A[static_cast<size_t>(row * K + k)]} * double{B[static_cast<size_t>(k * N + n)]};
        const float got = C[static_cast<size_t>(row * N + n)];
        if (row == 2 * M + 5)
          ASSERT_EQ(got, static_cast<float>(sum));
        else
          ASSERT_NEAR(got, sum, 1e-5) << row << " " << n;
      }
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
