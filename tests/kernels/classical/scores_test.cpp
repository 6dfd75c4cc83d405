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

// Expected values computed by NumPy and by ONNX Runtime's LinearClassifier.
TEST(PostTransform, OfARow) {
  test::expect_near(transformed(PostTransform::softmax, {0.1F, 0.7F, 0.05F}), std::vector<float>{0.265017F, 0.482892F, 0.252092F}, 1e-6);
  test::expect_near(transformed(PostTransform::logistic, {0.1F, 0.7F, -200}), std::vector<float>{0.524979F, 0.668188F, 0}, 1e-6);
  test::expect_near(transformed(PostTransform::softmax_zero, {0.6F, 0, 0}), std::vector<float>{1, 0, 0}, 1e-6);
  test::expect_near(transformed(PostTransform::probit, {0.1F, 0.7F, 0.05F, 0.5F, -0.3F}),
                    std::vector<float>{-1.281713F, 0.524446F, -1.64467F, 0, NAN}, 1e-5);
  EXPECT_EQ(transformed(PostTransform::none, {3, 4}), (std::vector<float>{3, 4}));
}

TEST(PostTransform, OfALoneScoreIsThatOfARow) {
  EXPECT_NEAR(transformed(PostTransform::logistic, {0.25F})[0], 0.562177F, 1e-6);
  EXPECT_NEAR(transformed(PostTransform::probit, {0.1F})[0], -1.281713F, 1e-5);
  for (PostTransform transform : {PostTransform::softmax, PostTransform::softmax_zero})
    EXPECT_EQ(transformed(transform, {0.25F}), (std::vector<float>{1}));
}

TEST(PostTransform, NamesWhatItExpects) {
  EXPECT_EQ(parse_post_transform("SOFTMAX_ZERO"), PostTransform::softmax_zero);
  EXPECT_THROW(parse_post_transform("softmax"), Error);
}

TEST(PostTransforms, OfRowsAreThoseOfEachRow) {
  for (PostTransform transform :
       {PostTransform::none, PostTransform::softmax, PostTransform::logistic, PostTransform::softmax_zero, PostTransform::probit}) {
    std::vector<float> rows{0.1F, 0.7F, 0.05F, 0.5F, 0, 0.9F}, expected;
    for (size_t row = 0; row < 2; ++row) {
      std::vector<float> own(rows.begin() + static_cast<std::ptrdiff_t>(3 * row), rows.begin() + static_cast<std::ptrdiff_t>(3 * row + 3));
      post_transform(transform, own.data(), 3);
      expected.insert(expected.end(), own.begin(), own.end());
    }
    post_transform(transform, rows.data(), 2, 3);
    test::expect_near(rows, expected, 1e-6);
  }
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

template <typename T>
class SvmSimilarity : public ::testing::Test {};
using SvmTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SvmSimilarity, SvmTypes);

TYPED_TEST(SvmSimilarity, IsWhatTheKernelsNameSays) {
  using T = TypeParam;
  using Type = SvmKernel::Type;
  const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;
  test::Random random;
  for (const int64_t columns : {0, 1, 10, 300}) {
    for (const auto& [rows, count] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 15}, {4, 16}, {9, 33}}) {
      const std::vector<T> x = random.vector<T>(rows * columns, -0.2, 0.2), supports = random.vector<T>(count * columns, -0.2, 0.2);
      SideBySide<T> vectors(count, columns);
      std::vector<T> packed(static_cast<size_t>(vectors.packed_elements()));
      vectors.pack(supports.data(), packed.data());
      for (const float degree : {0.0F, 1.0F, 3.0F, 2.5F}) {
        for (const Type type : {Type::linear, Type::poly, Type::rbf, Type::sigmoid}) {
          std::vector<T> similarity(static_cast<size_t>(rows * vectors.stride), T{-77});
          svm_similarities(SvmKernel{type, 0.5F, 8.0F, degree}, vectors, x.data(), rows, similarity.data());
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t v = 0; v < count; ++v) {
              double product = 0, distance = 0;
              for (int64_t c = 0; c < columns; ++c) {
                const auto a = static_cast<double>(x[static_cast<size_t>(r * columns + c)]);
                const auto b = static_cast<double>(supports[static_cast<size_t>(v * columns + c)]);
                product += a * b, distance += (a - b) * (a - b);
              }
              const double expected = type == Type::linear ? product
                                      : type == Type::rbf  ? std::exp(-0.5 * distance)
                                      : type == Type::poly ? std::pow(0.5 * product + 8, static_cast<double>(degree))
                                                           : std::tanh(0.5 * product + 8);
              const auto actual = static_cast<double>(similarity[static_cast<size_t>(r * vectors.stride + v)]);
              ASSERT_NEAR(actual, expected, tolerance * std::max(1.0, std::abs(expected)))
                  << columns << " columns, row " << r << ", vector " << v;
            }
          }
        }
      }
    }
  }
}

// Expected values computed by ONNX Runtime's SVMClassifier.
TEST(PairwiseCoupling, GivesProbabilitiesThatSumUpToOne) {
  std::vector<float> margins{0.1F, -0.7F, 0.05F}, a{-0.5F, -0.7F, 0.3F}, b{0.1F, 0.2F, 0.3F}, p(3),
      scratch(static_cast<size_t>(pairwise_coupling_scratch(3)));
  pairwise_coupling(margins.data(), a.data(), b.data(), 3, p.data(), scratch.data());
  test::expect_near(p, std::vector<float>{0.249688F, 0.301554F, 0.448759F}, 1e-5);
}

}  // namespace
}  // namespace treadle::kernels
