#include "kernels/gemm/gemm_bytes.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/gemm/tile_vnni.h"

namespace treadle::kernels {
namespace {

// Compares with sums in 64 bits, for sizes that are no multiple of any tile, all combinations of signs, and zero points.
TEST(GemmBytes, IsTheExactProductTimesTheScales) {
  std::mt19937 generator(5);
  for (int round = 0; round < 60; ++round) {
    const int64_t M = 1 + generator() % 110, K = 1 + generator() % 70, N = 1 + generator() % 140;
    const bool a_signed = generator() % 2, b_signed = generator() % 2, has_zeros = generator() % 2;
    std::vector<uint8_t> a(static_cast<size_t>(M * K)), b(static_cast<size_t>(K * N));
    for (uint8_t& x : a) x = static_cast<uint8_t>(generator());
    for (uint8_t& x : b) x = static_cast<uint8_t>(generator());
    std::vector<int32_t> zeros(static_cast<size_t>(N)), sums(static_cast<size_t>(N));
    std::vector<float> scales(static_cast<size_t>(N));
    for (int64_t n = 0; n < N; ++n) {
      zeros[static_cast<size_t>(n)] = static_cast<int32_t>(generator() % 256) - (b_signed ? 128 : 0);
      scales[static_cast<size_t>(n)] = 0.5F + static_cast<float>(n % 7);
    }
    const int32_t a_zero = static_cast<int32_t>(generator() % 256) - (a_signed ? 128 : 0);
    std::vector<int8_t> packed(static_cast<size_t>(packed_bytes_b_size(K, N)));
    const PackedBytesB B = pack_bytes_b(b.data(), b_signed, K, N, N, packed.data(), sums.data());
    std::vector<std::byte> scratch(gemm_bytes_scratch(M, K, N) + 64);
    std::vector<float> y(static_cast<size_t>(M * N));
    ThreadPool pool(2);
    gemm_bytes(M, {a.data(), a_signed, b_signed, a_zero, has_zeros ? zeros.data() : nullptr, scales.data()}, B, y.data(), scratch.data(),
               round % 2 ? &pool : nullptr);
    auto value = [](uint8_t x, bool is_signed) { return is_signed ? int64_t{static_cast<int8_t>(x)} : int64_t{x}; };
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < K; ++k)
          sum += (value(a[static_cast<size_t>(m * K + k)], a_signed) - a_zero) *
                 (value(b[static_cast<size_t>(k * N + n)], b_signed) - (has_zeros ? zeros[static_cast<size_t>(n)] : 0));
        ASSERT_EQ(y[static_cast<size_t>(m * N + n)], static_cast<float>(sum) * scales[static_cast<size_t>(n)]) << M << " " << K << " " << N;
      }
    }
  }
}

// Some cases use the largest bytes: the sum of two such products does not fit into 16 bits.
TEST(GemmBytes, TilesOfEveryInstructionSetAreThePlainOne) {
  if (!has_fast_byte_products()) GTEST_SKIP() << "this machine has none but the plain one";
  std::mt19937 generator(6);
  for (int64_t rows = 1; rows <= 20; ++rows) {
    const int64_t quads = 1 + generator() % 20;
    std::vector<uint8_t> a(static_cast<size_t>(rows * quads * 4));
    std::vector<int8_t> b(static_cast<size_t>(quads * 256));
    for (uint8_t& x : a) x = rows % 5 == 0 ? 255 : static_cast<uint8_t>(generator());
    for (int8_t& x : b) x = rows % 10 == 0 ? -128 : rows % 5 == 0 ? 127 : static_cast<int8_t>(generator());
    std::vector<int32_t> plain(static_cast<size_t>(rows * 64));
    byte_tile_plain({a.data(), quads * 4, b.data(), quads, plain.data(), rows});
    for (ByteInstructions with : {ByteInstructions::avx2, ByteInstructions::avx_vnni, ByteInstructions::avx512_vnni}) {
      if (!has_byte_instructions(with)) continue;
      std::vector<int32_t> fast(plain.size(), 77);
      byte_tile({a.data(), quads * 4, b.data(), quads, fast.data(), rows}, with);
      EXPECT_EQ(fast, plain) << "with " << static_cast<int>(with);
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
