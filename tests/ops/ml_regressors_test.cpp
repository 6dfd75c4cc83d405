#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/run_op.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::values;

using Ints = std::vector<int64_t>;
using Floats = std::vector<float>;

std::vector<float> regression(const char* op, Attributes attributes, const char* transform) {
  attributes.set("post_transform", std::string(transform));
  return values<float>(run_op({op, 1, {floats({2, 1}, {0, 1})}, std::move(attributes), 1, "ai.onnx.ml"})[0]);
}

// The scores are 0.8 and 0.3. The values for PROBIT are those of SciPy's norm.ppf, which the operators approximate.
void expect_transformed(const char* op, const Attributes& attributes) {
  auto near = [](const std::vector<float>& actual, float first, float second, float tolerance) {
    ASSERT_EQ(actual.size(), 2U);
    EXPECT_NEAR(actual[0], first, tolerance);
    EXPECT_NEAR(actual[1], second, tolerance);
  };
  near(regression(op, attributes, "NONE"), 0.8F, 0.3F, 1e-6F);
  near(regression(op, attributes, "LOGISTIC"), 1 / (1 + std::exp(-0.8F)), 1 / (1 + std::exp(-0.3F)), 1e-6F);
  near(regression(op, attributes, "PROBIT"), 0.841621F, -0.524401F, 5e-3F);
  near(regression(op, attributes, "SOFTMAX"), 1, 1, 0);
}

TEST(Regressors, TransformTheScoreOfALoneTarget) {
  expect_transformed("LinearRegressor", {{"coefficients", Floats{-0.5F}}, {"intercepts", Floats{0.8F}}});
  expect_transformed(
      "SVMRegressor",
      {{"kernel_type", std::string("LINEAR")}, {"kernel_params", Floats{1, 0, 3}}, {"coefficients", Floats{-0.5F}}, {"rho", Floats{0.8F}}});
  expect_transformed("TreeEnsembleRegressor", {{"n_targets", int64_t{1}},
                                               {"nodes_treeids", Ints{0, 0, 0}},
                                               {"nodes_nodeids", Ints{0, 1, 2}},
                                               {"nodes_featureids", Ints{0, 0, 0}},
                                               {"nodes_modes", std::vector<std::string>{"BRANCH_LEQ", "LEAF", "LEAF"}},
                                               {"nodes_values", Floats{0.5F, 0, 0}},
                                               {"nodes_truenodeids", Ints{1, 0, 0}},
                                               {"nodes_falsenodeids", Ints{2, 0, 0}},
                                               {"target_treeids", Ints{0, 0}},
                                               {"target_nodeids", Ints{1, 2}},
                                               {"target_ids", Ints{0, 0}},
                                               {"target_weights", Floats{0.8F, 0.3F}}});
}

}  // namespace
}  // namespace treadle
