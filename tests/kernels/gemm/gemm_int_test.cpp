#include "kernels/gemm/gemm_int.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/conv/conv_int.h"
#include "tests/kernels/conv/reference.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::Random;

// 8-bit values as int32, and the bytes that represent them.
struct Bytes {
  bool is_signed;
  std::vector<int32_t> values;
  std::vector<uint8_t> bytes;
  Bytes(Random& random, int64_t n)
      : is_signed(random.coin()), values(random.integers<int32_t>(n, is_signed ? -128 : 0, is_signed ? 127 : 255)) {
    for (int32_t v : values) bytes.push_back(static_cast<uint8_t>(v));
  }
  Bytes(Random& random, int64_t n, bool with_sign)
      : is_signed(with_sign), values(random.integers<int32_t>(n, with_sign ? -128 : 0, with_sign ? 127 : 255)) {
    for (int32_t v : values) bytes.push_back(static_cast<uint8_t>(v));
  }
};

TEST(GemmInt, IsExactForAllSignsAndZeroPoints) {
  Random random(71);
  for (int round = 0; round < 200; ++round) {
    const int64_t M = random.integer(1, round % 10 == 0 ? 200 : 20), N = random.integer(1, 150), K = random.integer(0, 70),
                  batches = random.integer(1, 3);
    const bool transposed = random.coin();
    const Bytes A(random, batches * M * K), B(random, batches * K * N);
    const bool a_per_row = random.coin(), b_per_column = random.coin();
    const Bytes az(random, a_per_row ? M : 1, A.is_signed), bz(random, b_per_column ? N : 1, B.is_signed);
    const bool with_zeros = random.coin();
    const ByteMatrix a{A.bytes.data(), A.is_signed, with_zeros ? az.bytes.data() : nullptr, a_per_row};
    const ByteMatrix b{B.bytes.data(), B.is_signed, with_zeros ? bz.bytes.data() : nullptr, b_per_column};
    GemmShape shape{.M = M, .N = N, .K = K, .a_row = K, .ldb = transposed ? K : N, .b_transposed = transposed, .ldc = N, .batch = batches};
    const int64_t dims[] = {batches};
    const BatchStrides batch = broadcast_batches(dims, dims, M * K, K * N, M * N);
    std::vector<int32_t> C(batches * M * N), expected(C.size());
    std::vector<char> scratch(gemm_int_scratch_bytes(shape) + 64);
    gemm_int(shape, batch, a, b, C.data(), scratch.data(), nullptr);
    for (int64_t i = 0; i < batches; ++i) {
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < N; ++n) {
          for (int64_t k = 0; k < K; ++k) {
            const int32_t x = A.values[(i * M + m) * K + k] - (with_zeros ? az.values[a_per_row ? m : 0] : 0);
            const int32_t y =
                B.values[i * K * N + (transposed ? n * K + k : k * N + n)] - (with_zeros ? bz.values[b_per_column ? n : 0] : 0);
            expected[(i * M + m) * N + n] += x * y;
          }
        }
      }
    }
    ASSERT_EQ(C, expected);
  }
}

TEST(GemmInt, WideIntegersMultiplyModuloTheirSize) {
  Random random(72);
  const int64_t M = 5, N = 33, K = 17;
  const auto A = random.integers<uint64_t>(M * K, 0, INT64_MAX), B = random.integers<uint64_t>(K * N, 0, INT64_MAX);
  std::vector<uint64_t> C(M * N), expected(M * N);
  gemm_plain<uint64_t>({.M = M, .N = N, .K = K, .a_row = K, .ldb = N, .ldc = N}, {}, A.data(), B.data(), C.data(), nullptr);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t k = 0; k < K; ++k) expected[m * N + n] += A[m * K + k] * B[k * N + n];
    }
  }
  EXPECT_EQ(C, expected);
}

TEST(ConvInt, IsExactForRandomWindows) {
  Random random(73);
  for (int round = 0; round < 150; ++round) {
    ConvParams p;
    p.N = random.integer(1, 2);
    p.group = random.integer(1, 3);
    p.C = p.group * random.integer(1, 4);
    p.M = p.group * random.integer(1, 9);
    const int rank = static_cast<int>(random.integer(1, 3));
    p.window = test::random_window(random, rank, rank == 1 ? 150 : rank == 2 ? 15 : 6);
    const Bytes x(random, p.N * p.C * p.window.in_size()), w(random, p.M * (p.C / p.group) * p.window.kernel_size());
    const bool per_channel = random.coin();
    const Bytes xz(random, 1, x.is_signed), wz(random, per_channel ? p.M : 1, w.is_signed);
    std::vector<int16_t> packed(conv_int_weights_size(p));
    pack_conv_int_weights(p, {w.bytes.data(), w.is_signed, wz.bytes.data(), per_channel}, packed.data());
    std::vector<char> scratch(conv_int_scratch_bytes(p, 2) + 64);
    std::vector<int32_t> y(p.N * p.M * p.window.out_size());
    conv_int(p, {x.bytes.data(), x.is_signed, xz.bytes.data(), false}, packed.data(), y.data(), scratch.data(), 2, nullptr);
    std::vector<int32_t> centered_x = x.values, centered_w = w.values;
    for (int32_t& v : centered_x) v -= xz.values[0];
    const int64_t per_filter = static_cast<int64_t>(centered_w.size()) / p.M;
    for (size_t i = 0; i < centered_w.size(); ++i) centered_w[i] -= wz.values[per_channel ? static_cast<int64_t>(i) / per_filter : 0];
    ASSERT_EQ(y, (test::reference_conv<int32_t, int32_t>(p, centered_x, centered_w)));
  }
}

TEST(Requantize, RoundsToEvenAndSaturates) {
  Random random(74);
  for (bool is_signed : {true, false}) {
    for (int64_t n : {0, 1, 15, 16, 17, 100}) {
      auto src = random.integers<int32_t>(n, -3000, 3000);
      if (n > 2) src[0] = INT32_MAX, src[1] = INT32_MIN;
      std::vector<uint8_t> dst(n);
      requantize(src.data(), n, 0.125f, 3, is_signed, dst.data());
      for (int64_t i = 0; i < n; ++i) {
        const double v = std::nearbyint(src[i] * 0.125) + 3;
        const double expected = std::min(std::max(v, is_signed ? -128.0 : 0.0), is_signed ? 127.0 : 255.0);
        ASSERT_EQ(is_signed ? int(static_cast<int8_t>(dst[i])) : int(dst[i]), expected) << src[i];
      }
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
