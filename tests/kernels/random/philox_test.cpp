#include "kernels/random/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace treadle::kernels {
namespace {

// Known answers from the authors' library, Random123 (kat_vectors, philox4x32 10).
TEST(Philox, GivesTheAuthorsKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, UniformNumbersHaveTheMomentsOfTheDistribution) {
  RandomStream stream{7, 1};
  std::vector<double> x(100000);
  stream.fill_uniform(0, x.data(), static_cast<int64_t>(x.size()));
  double sum = 0, squares = 0;
  for (double v : x) {
    ASSERT_GE(v, 0.0);
    ASSERT_LT(v, 1.0);
    sum += v;
    squares += v * v;
  }
  double n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));  // the allowed difference is five standard errors
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
}

TEST(RandomStream, NormalNumbersHaveTheMomentsOfTheDistribution) {
  RandomStream stream{7, 1};
  std::vector<double> x(100000);
  stream.fill_normal(0, x.data(), static_cast<int64_t>(x.size()));
  double sum = 0, squares = 0, fourth = 0;
  for (double v : x) sum += v, squares += v * v, fourth += v * v * v * v;
  double n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3.0, 5 * std::sqrt(96.0 / n));
}

TEST(RandomStream, AnElementDependsOnItsIndexOnlyAndOnKeyAndStream) {
  RandomStream stream{7, 1};
  std::vector<double> whole(100), part(40);
  stream.fill_uniform(0, whole.data(), 100);
  stream.fill_uniform(60, part.data(), 40);
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[60 + i]);
  EXPECT_NE(RandomStream({8, 1}).uniform(0), whole[0]);
  EXPECT_NE(RandomStream({7, 2}).uniform(0), whole[0]);
}

}  // namespace
}  // namespace treadle::kernels
