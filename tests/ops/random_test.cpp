#include <gtest/gtest.h>

#include <cmath>

#include "core/values/float_types.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

constexpr double kSamples = 40000;

double mean_of(const std::vector<float>& x) {
  double sum = 0;
  for (float v : x) sum += static_cast<double>(v);
  return sum / static_cast<double>(x.size());
}

TEST(RandomNormal, HasTheMeanAndDeviationAskedFor) {
  auto x = values<float>(
      run_op({"RandomNormal", 22, {}, {{"shape", std::vector<int64_t>{40000}}, {"mean", 3.0F}, {"scale", 2.0F}, {"seed", 5.0F}}})[0]);
  double mean = mean_of(x), squares = 0;
  for (float v : x) squares += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  EXPECT_NEAR(mean, 3, 5 * 2 / std::sqrt(kSamples));
  EXPECT_NEAR(squares / kSamples, 4, 5 * 4 * std::sqrt(2 / kSamples));
}

TEST(RandomUniformLike, TakesShapeAndTypeOfItsInput) {
  Tensor y = run_op({"RandomUniformLike", 22, {tensor<double>({3, 4}, std::vector<double>(12))}, {{"low", -1.0F}, {"high", -0.5F}}})[0];
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  for (double v : values<double>(y)) EXPECT_TRUE(v >= -1 && v < -0.5);
}

TEST(Multinomial, RefusesOtherTypesThanIntegers) {
  try {
    run_op({"Multinomial", 22, {floats({1, 2}, {0, 1})}, {{"dtype", int64_t{0}}}});
    FAIL() << "a draw of no type";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("names no dtype among int32, int64"), std::string::npos) << error.what();
  }
}

TEST(Bernoulli, DrawsOnesAsOftenAsItsInputSays) {
  Tensor y = run_op({"Bernoulli", 22, {floats({40000}, std::vector<float>(40000, 0.3F))}})[0];
  for (float v : values<float>(y)) ASSERT_TRUE(v == 0 || v == 1);
  EXPECT_NEAR(mean_of(values<float>(y)), 0.3, 5 * std::sqrt(0.3 * 0.7 / kSamples));
  Tensor bounds = run_op({"Bernoulli", 22, {floats({2}, {0, 1})}, {{"dtype", static_cast<int64_t>(DType::boolean)}}})[0];
  EXPECT_EQ(values<bool>(bounds), (std::vector<bool>{false, true}));
}

TEST(Multinomial, DrawsClassesByTheirProbabilities) {
  // The inputs are not normalised. The probabilities are 1/8, 2/8 and 5/8.
  Tensor x = floats({1, 3}, {std::log(1.0F), std::log(2.0F), std::log(5.0F)});
  Tensor y = run_op({"Multinomial", 22, {x}, {{"sample_size", int64_t{40000}}}})[0];
  EXPECT_EQ(y.shape(), (Shape{1, 40000}));
  double count[3] = {};
  for (int32_t v : values<int32_t>(y)) count[v] += 1;
  const double expected[] = {0.125, 0.25, 0.625};
  for (int k = 0; k < 3; ++k) EXPECT_NEAR(count[k] / kSamples, expected[k], 5 * std::sqrt(0.25 / kSamples));
}

TEST(Dropout, IsTheIdentityOutsideTraining) {
  Tensor x = floats({3}, {1, 2, 3});
  auto outputs = run_op({"Dropout", 22, {x, floats({}, {0.9F}), tensor<bool>({}, {false})}, {}, 2});
  EXPECT_EQ(values<float>(outputs[0]), values<float>(x));
  EXPECT_EQ(values<bool>(outputs[1]), (std::vector<bool>{true, true, true}));
}

TEST(Dropout, InTrainingScalesWhatStaysSoThatTheMeanStays) {
  Tensor x = floats({40000}, std::vector<float>(40000, 1));
  auto outputs = run_op({"Dropout", 22, {x, floats({}, {0.75F}), tensor<bool>({}, {true})}, {}, 2});
  auto y = values<float>(outputs[0]);
  auto mask = values<bool>(outputs[1]);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], mask[i] ? 4.0F : 0.0F);
  EXPECT_NEAR(mean_of(y), 1, 5 * std::sqrt(3 / kSamples));
}

TEST(Dropout, RefusesARatioOfOne) {
  EXPECT_THROW(run_op({"Dropout", 22, {floats({1}, {1}), floats({}, {1}), tensor<bool>({}, {true})}}), Error);
}

TEST(Dropout, OfOpset6HasAMaskOfTheDatasType) {
  auto outputs = run_op({"Dropout", 6, {floats({2}, {1, 2})}, {{"is_test", int64_t{1}}, {"ratio", 0.3F}}, 2});
  EXPECT_EQ(values<float>(outputs[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(values<float>(outputs[1]), (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace treadle
