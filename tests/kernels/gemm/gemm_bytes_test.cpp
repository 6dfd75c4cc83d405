#include "kernels/gemm/gemm_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/conv/byte_tile.h"

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

// Quantised again as the graph of several nodes would: a bias, an addend, a residual, a table.
TEST(GemmBytes, ResultsInBytesAreThoseOfSeparateSteps) {
  std::mt19937 generator(7);
  for (int round = 0; round < 80; ++round) {
    const int64_t M = 1 + generator() % 110, K = 1 + generator() % 70, N = 1 + generator() % 140;
    const bool a_signed = generator() % 2, b_signed = generator() % 2;
    auto bytes = [&](int64_t count) {
      std::vector<uint8_t> values(static_cast<size_t>(count));
      for (uint8_t& x : values) x = static_cast<uint8_t>(generator());
      return values;
    };
    const std::vector<uint8_t> a = bytes(M * K), b = bytes(K * N), residual = bytes(M * N), table = bytes(256);
    const int32_t a_zero = static_cast<int32_t>(generator() % 256) - (a_signed ? 128 : 0);
    const std::vector<int32_t> b_zeros(static_cast<size_t>(N), static_cast<int32_t>(generator() % 256) - (b_signed ? 128 : 0));
    const auto padded = static_cast<size_t>((N + 15) / 16 * 16);
    std::vector<float> scales(static_cast<size_t>(N)), bias(padded), addends(padded);
    for (size_t n = 0; n < scales.size(); ++n) {
      scales[n] = static_cast<float>(1 + n % 5) / (40.0F * std::sqrt(static_cast<float>(K)) * 20.0F);
      bias[n] = static_cast<float>(n % 7) - 3, addends[n] = 4 - static_cast<float>(n % 9);
    }
    ByteAddition additions[] = {{.factor = 0.75F, .addends = addends.data(), .zero = 100},
                                {.factor = 0.625F,
                                 .residual = residual.data(),
                                 .residual_factor = 0.5F,
                                 .residual_zero = -5,
                                 .residual_signed = true,
                                 .zero = -9,
                                 .is_signed = true}};
    BytesResult result{.zero = 30, .is_signed = round % 3 == 0};
    result.additions = additions, result.num_additions = round % 3;
    if (round % 2) result.addends = bias.data();
    if (round % 5 == 0) result.table = table.data();
    std::vector<int8_t> packed(static_cast<size_t>(packed_bytes_b_size(K, N)));
    std::vector<int32_t> sums(static_cast<size_t>(N));
    const PackedBytesB B = pack_bytes_b(b.data(), b_signed, K, N, N, packed.data(), sums.data());
    std::vector<std::byte> scratch(gemm_bytes_scratch(M, K, N) + 64);
    std::vector<uint8_t> y(static_cast<size_t>(M * N));
    ThreadPool pool(2);
    gemm_bytes(M, {a.data(), a_signed, b_signed, a_zero, b_zeros.data(), scales.data()}, B, result, y.data(), scratch.data(),
               round % 2 ? &pool : nullptr);
    auto value = [](uint8_t x, bool is_signed) { return is_signed ? int64_t{static_cast<int8_t>(x)} : int64_t{x}; };
    auto quantized = [](double x, int32_t zero, bool is_signed) {
      return std::clamp(std::nearbyint(x) + zero, is_signed ? -128.0 : 0.0, is_signed ? 127.0 : 255.0) - zero;
    };
    int64_t differences = 0;
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) {
        const auto place = static_cast<size_t>(m * N + n), column = static_cast<size_t>(n);
        int64_t sum = 0;
        for (int64_t k = 0; k < K; ++k)
          sum += (value(a[static_cast<size_t>(m * K + k)], a_signed) - a_zero) *
                 (value(b[static_cast<size_t>(k * N + n)], b_signed) - b_zeros[column]);
        double code = quantized(static_cast<double>(sum) * scales[column] + (result.addends ? bias[column] : 0), 30, result.is_signed);
        int32_t zero = 30;
        if (result.num_additions > 0) code = quantized(code * 0.75 + addends[column], zero = 100, false);
        if (result.num_additions > 1) code = quantized(code * 0.625 + (static_cast<int8_t>(residual[place]) + 5) * 0.5, zero = -9, true);
        auto byte = static_cast<uint8_t>(static_cast<int32_t>(code) + zero);
        if (result.table) byte = table[byte];
        differences += byte == y[place] ? 0 : 1;
      }
    }
    // A sum close to the middle of two codes may be rounded either way.
    EXPECT_LE(differences, M * N / 1000) << M << " " << K << " " << N << " round " << round;
  }
}

}  // namespace
}  // namespace treadle::kernels
