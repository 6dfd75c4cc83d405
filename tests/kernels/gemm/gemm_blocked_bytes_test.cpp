#include "kernels/gemm/gemm_blocked_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/gemm/blocked_weights.h"

namespace treadle::kernels {
namespace {

// Computes the expected result: activations are rounded as the header describes, and everything else is computed in double.
TEST(GemmBlockedBytes, IsTheProductWithActivationsRoundedBlockByBlock) {
  std::mt19937 generator(9);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 80; ++round) {
    const BlockedShape s = test::random_blocked_shape(generator, round % 2 ? 8 : 4);
    if (!takes_blocked_bytes(s)) GTEST_SKIP() << "this machine has no fast products of bytes";
    const int64_t M = 1 + generator() % (round % 3 ? 20 : 110), blocks = s.blocks();
    const test::BlockedWeights weights(s, generator);
    std::vector<float> a(static_cast<size_t>(M * s.K)), y(static_cast<size_t>(M * s.N));
    std::vector<double> rounded(a.size());
    for (float& x : a) x = normal(generator);
    std::fill_n(a.begin(), std::min(s.K, s.block_size), 0.0F);  // the first block consists of zeros
    for (int64_t m = 0; m < M; ++m)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = m * s.K + b * s.block_size, end = m * s.K + std::min(s.K, (b + 1) * s.block_size);
        float largest = 0;
        for (int64_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(a[static_cast<size_t>(i)]));
        for (int64_t i = first; i < end; ++i)
          rounded[static_cast<size_t>(i)] =
              largest > 0 ? std::nearbyint(a[static_cast<size_t>(i)] * (127 / largest)) * double{largest / 127} : 0;
      }
    ThreadPool pool(2);
    std::vector<std::byte> scratch(gemm_blocked_bytes_scratch(M, s) + 64);
    const PackedBlocked B = weights.packed();
    gemm_blocked_bytes(M, a.data(), B, y.data(), scratch.data(), &pool);
    weights.expect_product(M, rounded, y);
    std::vector<float> alone(y.size());
    gemm_blocked_bytes(M, a.data(), B, alone.data(), scratch.data(), nullptr);
    ASSERT_EQ(alone, y) << "the same bits for any number of threads";
  }
}

TEST(GemmBlockedBytes, KeepsNanAndInfOfTheActivationsInTheirRows) {
  BlockedShape s{.K = 64, .N = 20, .block_size = 32, .bits = 4};
  if (!takes_blocked_bytes(s)) GTEST_SKIP() << "this machine has no fast products of bytes";
  std::vector<uint32_t> words(blocked_code_words(s));
  std::vector<float> scales(blocked_scale_count(s), 1.0F), a(3 * 64, 1.0F), y(3 * 20);
  pack_blocked_code(s, 3, 4, 2, words.data());
  a[5] = std::numeric_limits<float>::quiet_NaN();
  a[2 * 64 + 40] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> scratch(gemm_blocked_bytes_scratch(3, s) + 64);
  gemm_blocked_bytes(3, a.data(), {s, words.data(), scales.data(), nullptr}, y.data(), scratch.data(), nullptr);
  for (int n = 0; n < 20; ++n) {
    EXPECT_TRUE(std::isnan(y[static_cast<size_t>(n)]));
    EXPECT_EQ(y[static_cast<size_t>(20 + n)], n == 4 ? 2.0F : 0.0F);
    EXPECT_TRUE(std::isnan(y[static_cast<size_t>(40 + n)]));
  }
}

}  // namespace
}  // namespace treadle::kernels
