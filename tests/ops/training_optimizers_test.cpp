#include <gtest/gtest.h>

#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::OpCase;
using testing::run_op;
using testing::tensor;

TEST(TrainingOptimizers, RefuseOperandsOfOtherTypesThanX) {
  auto refuses = [](std::string op, std::vector<Tensor> inputs, int outputs, Attributes attributes = {}) {
    EXPECT_THROW(run_op({op, 1, inputs, attributes, outputs, "ai.onnx.preview.training"}), Error) << op;
  };
  const Tensor rate = floats({}, {0.1F}), count = tensor<int64_t>({}, {1}), none = floats({0}, {});
  const Tensor x = tensor<double>({4}, {1, 2, 3, 4}), narrow = floats({4}, {1, 2, 3, 4}), shorter = tensor<double>({2}, {1, 2});
  const Attributes momentum = {{"alpha", 0.5F}, {"beta", 0.5F}, {"mode", std::string("standard")}, {"norm_coefficient", 0.0F}};
  for (const Tensor& other : {narrow, shorter}) {
    refuses("Adagrad", {rate, count, x, other, x}, 2);
    refuses("Adagrad", {rate, count, x, x, other}, 2);
    refuses("Adam", {rate, count, x, x, x, other}, 3);
    refuses("Momentum", {rate, count, x, x, other}, 2, momentum);
  }
  refuses("Adagrad", {none, count, x, x, x}, 2);
  refuses("Adagrad", {rate, tensor<int64_t>({0}, {}), x, x, x}, 2);
  EXPECT_NO_THROW(run_op({"Adagrad", 1, {rate, count, x, x, x}, {}, 2, "ai.onnx.preview.training"}));
}

}  // namespace
}  // namespace treadle
