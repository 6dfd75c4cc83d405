#include "kernels/gemm/gemm_blocked.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/gemm/blocked_weights.h"

namespace treadle::kernels {
namespace {

/// Lets the kernels of one instruction set run, if this machine has it.
class ChosenSet {
 public:
  explicit ChosenSet(int64_t target) { hwy::GetChosenTarget().Update(target & hwy::SupportedTargets()); }
  ~ChosenSet() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

class GemmBlockedSets : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((GetParam() & hwy::SupportedTargets()) == 0) GTEST_SKIP() << "this machine lacks " << hwy::TargetName(GetParam());
  }
};

// Compares with a sum in double, for sizes that are no multiple of any tile.
TEST_P(GemmBlockedSets, IsTheProductWithTheWeightsThatTheCodesStandFor) {
  const ChosenSet chosen(GetParam());
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 80; ++round) {
    const BlockedShape s = test::random_blocked_shape(generator, round % 2 ? 8 : 4);
    const int64_t M = 1 + generator() % (round % 3 ? 20 : 110);
    const test::BlockedWeights weights(s, generator);
    std::vector<float> a(static_cast<size_t>(M * s.K)), y(static_cast<size_t>(M * s.N));
    for (float& x : a) x = normal(generator);
    ThreadPool pool(2);
    std::vector<std::byte> scratch(gemm_blocked_scratch(M, s) + 64);
    const PackedBlocked B = weights.packed();
    gemm_blocked(M, a.data(), B, y.data(), scratch.data(), &pool);
    weights.expect_product(M, a, y);
    std::vector<float> alone(y.size());
    gemm_blocked(M, a.data(), B, alone.data(), scratch.data(), nullptr);
    ASSERT_EQ(alone, y) << "the same bits for any number of threads";
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmBlockedSets, ::testing::Values(HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET));

TEST(GemmBlocked, KeepsNanAndInfOfTheActivationsInTheirRows) {
  BlockedShape s;
  s.K = 32, s.N = 16, s.block_size = 32;
  std::vector<uint32_t> words(blocked_code_words(s));
  std::vector<float> scales(blocked_scale_count(s), 0.5F), a(64, 1.0F), y(32);
  for (int64_t k = 0; k < s.K; ++k)
    for (int64_t n = 0; n < s.N; ++n) pack_blocked_code(s, k, n, 1, words.data());
  a[5] = std::numeric_limits<float>::quiet_NaN();
  gemm_blocked(2, a.data(), {s, words.data(), scales.data(), nullptr}, y.data(), nullptr, nullptr);
  for (size_t n = 0; n < 16; ++n) {
    EXPECT_TRUE(std::isnan(y[n]));
    EXPECT_EQ(y[16 + n], 16.0F);
  }
}

}  // namespace
}  // namespace treadle::kernels
