#include "kernels/classical/scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/classical/svm.h"
#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

std::vector<float> transformed(PostTransform transform, std::vector<float> scores) {
  post_transform(transform, scores.data(), static_cast<int64_t>(scores.size()));
  return scores;
}

// Values by NumPy and by ONNX Runtime's LinearClassifier.
TEST(PostTransform, OfARow) {
  test::expect_near(transformed(PostTransform::softmax, {0.1F, 0.7F, 0.05F}), std::vector<float>{0.265017F, 0.482892F, 0.252092F}, 1e-6);
  test::expect_near(transformed(PostTransform::logistic, {0.1F, 0.7F, -200}), std::vector<float>{0.524979F, 0.668188F, 0}, 1e-6);
  test::expect_near(transformed(PostTransform::softmax_zero, {0.6F, 0, 0}), std::vector<float>{1, 0, 0}, 1e-6);
  test::expect_near(transformed(PostTransform::probit, {0.1F, 0.7F, 0.05F, 0.5F, -0.3F}),
                    std::vector<float>{-1.281713F, 0.524446F, -1.64467F, 0, NAN}, 1e-5);
  EXPECT_EQ(transformed(PostTransform::none, {3, 4}), (std::vector<float>{3, 4}));
}

TEST(PostTransform, LeavesALoneScoreButForProbit) {
  for (PostTransform transform : {PostTransform::softmax, PostTransform::logistic, PostTransform::softmax_zero})
    EXPECT_EQ(transformed(transform, {0.25F}), (std::vector<float>{0.25F}));
  EXPECT_NEAR(transformed(PostTransform::probit, {0.1F})[0], -1.281713F, 1e-5);
}

TEST(PostTransform, NamesWhatItExpects) {
  EXPECT_EQ(parse_post_transform("SOFTMAX_ZERO"), PostTransform::softmax_zero);
  EXPECT_THROW(parse_post_transform("softmax"), Error);
}

TEST(Pair, IsMadeOfOneScore) {
  float pair[2];
  write_pair(PostTransform::none, PairFrom::complement, 0.2F, pair);
  test::expect_near(std::vector<float>(pair, pair + 2), std::vector<float>{0.8F, 0.2F}, 1e-6);
  write_pair(PostTransform::none, PairFrom::negation, 0.2F, pair);
  test::expect_near(std::vector<float>(pair, pair + 2), std::vector<float>{-0.2F, 0.2F}, 1e-6);
  write_pair(PostTransform::logistic, PairFrom::complement, 0.2F, pair);
  test::expect_near(std::vector<float>(pair, pair + 2), std::vector<float>{0.450166F, 0.549834F}, 1e-6);
}

TEST(SvmKernel, IsWhatItsNameSays) {
  std::vector<double> a, b;
  test::Random random;
  for (int64_t n : {0, 1, 15, 16, 17, 100}) {
    a = random.vector<double>(n);
    b = random.vector<double>(n);
    double product = 0, distance = 0;
    for (size_t i = 0; i < a.size(); ++i) product += a[i] * b[i], distance += (a[i] - b[i]) * (a[i] - b[i]);
    auto kernel = [&](SvmKernel::Type type) { return svm_kernel(SvmKernel{type, 0.5F, 0.25F, 3}, a.data(), b.data(), n); };
    EXPECT_NEAR(kernel(SvmKernel::Type::linear), product, 1e-12);
    EXPECT_NEAR(kernel(SvmKernel::Type::poly), std::pow(0.5 * product + 0.25, 3), 1e-12);
    EXPECT_NEAR(kernel(SvmKernel::Type::sigmoid), std::tanh(0.5 * product + 0.25), 1e-12);
    EXPECT_NEAR(kernel(SvmKernel::Type::rbf), std::exp(-0.5 * distance), 1e-12);
  }
}

// Values by ONNX Runtime's SVMClassifier.
TEST(PairwiseCoupling, GivesProbabilitiesThatSumUpToOne) {
  std::vector<float> margins{0.1F, -0.7F, 0.05F}, a{-0.5F, -0.7F, 0.3F}, b{0.1F, 0.2F, 0.3F}, p(3),
      scratch(static_cast<size_t>(pairwise_coupling_scratch(3)));
  pairwise_coupling(margins.data(), a.data(), b.data(), 3, p.data(), scratch.data());
  test::expect_near(p, std::vector<float>{0.249688F, 0.301554F, 0.448759F}, 1e-5);
}

}  // namespace
}  // namespace treadle::kernels
