#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/values/float_types.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Reduce, OfOldOpsetsHasItsAxesAsAnAttribute) {
  Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  for (const char* op : {"ReduceSum", "ReduceMax", "ReduceMean"}) {
    int opset = std::string(op) == "ReduceSum" ? 11 : 13;
    Tensor y = run_op({op, opset, {x}, {{"axes", std::vector<int64_t>{-1}}, {"keepdims", int64_t{0}}}})[0];
    EXPECT_EQ(y.shape(), (Shape{2}));
    EXPECT_EQ(values<float>(y), std::string(op) == "ReduceSum"   ? (std::vector<float>{6, 15})
                                : std::string(op) == "ReduceMax" ? (std::vector<float>{3, 6})
                                                                 : (std::vector<float>{2, 5}));
  }
}

TEST(Reduce, OfNoAxesStillSquaresAndTakesLogarithms) {
  Tensor x = floats({2}, {2, 3}), none = tensor<int64_t>({0}, {});
  EXPECT_EQ(values<float>(run_op({"ReduceSumSquare", 18, {x, none}, {{"noop_with_empty_axes", int64_t{1}}}})[0]),
            (std::vector<float>{4, 9}));
  EXPECT_FLOAT_EQ(values<float>(run_op({"ReduceLogSum", 18, {x, none}, {{"noop_with_empty_axes", int64_t{1}}}})[0])[1], std::log(3.0F));
  EXPECT_EQ(values<float>(run_op({"ReduceSum", 13, {x, none}})[0]), (std::vector<float>{5}));
}

TEST(Reduce, OfNothingGivesTheNeutralElement) {
  Tensor x = floats({2, 0}, {}), axis = tensor<int64_t>({1}, {1});
  EXPECT_EQ(values<float>(run_op({"ReduceMax", 20, {x, axis}})[0]), (std::vector<float>{-kInfinity, -kInfinity}));
  EXPECT_EQ(values<float>(run_op({"ReduceProd", 18, {x, axis}})[0]), (std::vector<float>{1, 1}));
  EXPECT_EQ(values<bool>(run_op({"ReduceMin", 20, {tensor<bool>({1, 0}, {}), axis}})[0]), (std::vector<bool>{true}));
}

TEST(Reduce, RefusesAnAxisThatIsNotThere) {
  EXPECT_THROW(run_op({"ReduceSum", 13, {floats({2}, {1, 2}), tensor<int64_t>({1}, {1})}}), Error);
}

TEST(Reduce, BoolsAreOrdered) {
  Tensor x = tensor<bool>({2, 2}, {true, false, true, true}), axis = tensor<int64_t>({1}, {1});
  EXPECT_EQ(values<bool>(run_op({"ReduceMin", 20, {x, axis}, {{"keepdims", int64_t{0}}}})[0]), (std::vector<bool>{false, true}));
}

// The expected result is torch.softmax(x.reshape(2, 4), 1).
TEST(Softmax, BeforeOpset13FlattensFromItsAxisOn) {
  std::vector<float> x = {1, 2, 3, 4, 0, 0, 1, -1};
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    Tensor y = run_op({op, 11, {floats({2, 2, 2}, x)}})[0];
    EXPECT_EQ(y.shape(), (Shape{2, 2, 2}));
    for (size_t row = 0; row < 2; ++row) {
      double sum = 0;
      for (size_t i = 0; i < 4; ++i) sum += std::exp(static_cast<double>(x[row * 4 + i]));
      for (size_t i = 0; i < 4; ++i) {
        double p = std::exp(static_cast<double>(x[row * 4 + i])) / sum;
        EXPECT_NEAR(static_cast<double>(values<float>(y)[row * 4 + i]), op[0] == 'L' ? std::log(p) : p, 1e-6);
      }
    }
  }
  EXPECT_EQ(values<float>(run_op({"Hardmax", 11, {floats({1, 2, 2}, {1, 7, 7, 2})}})[0]), (std::vector<float>{0, 1, 0, 0}));
}

TEST(Softmax, OfHalfPrecisionRoundsTheFloatResult) {
  std::vector<Float16> x;
  for (int i = 0; i < 100; ++i) x.emplace_back(0.03F * static_cast<float>(i * 37 % 100));
  auto y = values<Float16>(run_op({"Softmax", 13, {tensor<Float16>({100}, x)}})[0]);
  double sum = 0;
  for (Float16 v : x) sum += std::exp(static_cast<double>(v));
  for (size_t i = 0; i < x.size(); ++i) {
    double exact = std::exp(static_cast<double>(x[i])) / sum;
    EXPECT_NEAR(static_cast<double>(y[i]), exact, 0x1p-11 * exact + 1e-7);
  }
}

TEST(ArgMax, PicksTheLastOfEqualsIfAsked) {
  Tensor x = floats({1, 3}, {2, 2, 1});
  EXPECT_EQ(values<int64_t>(run_op({"ArgMax", 13, {x}, {{"axis", int64_t{1}}, {"select_last_index", int64_t{1}}}})[0]),
            (std::vector<int64_t>{1}));
  EXPECT_THROW(run_op({"ArgMin", 13, {floats({2, 0}, {})}, {{"axis", int64_t{1}}}}), Error);
}

TEST(CumSum, RunsBackwardsAndWithoutItself) {
  Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6}), axis = tensor<int32_t>({}, {-1});
  EXPECT_EQ(values<float>(run_op({"CumSum", 14, {x, axis}, {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}})[0]),
            (std::vector<float>{5, 3, 0, 11, 6, 0}));
  EXPECT_EQ(values<float>(run_op({"CumProd", 26, {x, tensor<int64_t>({1}, {0})}})[0]), (std::vector<float>{1, 2, 3, 4, 10, 18}));
}

TEST(Det, PivotsAndFindsSingularMatrices) {
  Tensor x = floats({3, 2, 2}, {0, 1, 1, 0, 1, 2, 2, 4, 3, 1, 4, 2});
  EXPECT_EQ(values<float>(run_op({"Det", 22, {x}})[0]), (std::vector<float>{-1, 0, 2}));
}

// Computes nll_loss and cross_entropy of torch.nn.functional by hand: -(0.3 * 1 + 0.1 * 4) / (0.3 + 0.1).
TEST(Loss, MeanIsWeightedAndLeavesIgnoredTargetsOut) {
  Tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6}), weight = floats({2}, {0.3F, 0.1F});
  Tensor y = run_op({"NegativeLogLikelihoodLoss", 22, {x, tensor<int32_t>({3}, {0, 1, -5}), weight}, {{"ignore_index", int64_t{-5}}}})[0];
  EXPECT_NEAR(static_cast<double>(values<float>(y)[0]), -(0.3 * 1 + 0.1 * 4) / 0.4, 1e-6);
  EXPECT_THROW(run_op({"NegativeLogLikelihoodLoss", 22, {x, tensor<int32_t>({3}, {0, 1, 2})}}), Error);
}

}  // namespace
}  // namespace treadle
