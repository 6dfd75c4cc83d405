#include "tests/autodiff/gradient_check.h"

namespace treadle::testing {
namespace {

TEST(ElementwiseGradients, ArithmeticFollowsFiniteDifferences) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max", "Min"})
    check_gradients({.op_type = op, .inputs = {doubles({2, 3}, 1), doubles({2, 3}, 2, 1, 2)}});
}

TEST(ElementwiseGradients, BroadcastOperandsAreSummed) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max"}) {
    check_gradients({.op_type = op, .inputs = {doubles({2, 3, 4}, 1), doubles({3, 1}, 2, 1, 2)}});
    check_gradients({.op_type = op, .inputs = {doubles({4}, 1), doubles({2, 3, 4}, 2, 1, 2)}});
    check_gradients({.op_type = op, .inputs = {doubles({2, 1, 1}, 1), doubles({1, 3, 1}, 2, 1, 2)}});
    check_gradients({.op_type = op, .inputs = {doubles({}, 1), doubles({2, 2}, 2, 1, 2)}});
    check_gradients({.op_type = op, .inputs = {doubles({3, 4}, 1), doubles({4}, 2, 1, 2)}, .symbolic_batch = true});
  }
}

// The extents are symbols, so only a run knows which axes were broadcast.
TEST(ElementwiseGradients, BroadcastsBetweenSymbolsAreSummed) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max"})
    for (const Shape& shape : {Shape{3, 4}, Shape{1, 4}, Shape{3, 1}, Shape{1, 1}, Shape{4}, Shape{2, 3, 4}})
      check_gradients({.op_type = op, .inputs = {doubles({3, 4}, 1), doubles(shape, 2, 1, 2)}, .symbolic = true});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 1, 2, 3}, 1), doubles({4, 3, 2}, 2)}, .symbolic = true});
  check_gradients({.op_type = "Expand", .inputs = {doubles({3, 1}, 1), indices({3}, {2, 3, 4})}, .symbolic = true});
}

TEST(ElementwiseGradients, InversesAndHyperbolicsFollowFiniteDifferences) {
  for (const char* op : {"Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Mish"})
    check_gradients({.op_type = op, .inputs = {doubles({3, 5}, 1, -0.9, 0.9)}});
  check_gradients({.op_type = "Acosh", .inputs = {doubles({3, 5}, 1, 1.2, 3)}});
  for (const char* op : {"ThresholdedRelu", "Shrink"}) check_gradients({.op_type = op, .inputs = {doubles({4, 7}, 1, -4, 4)}});
  check_gradients({.op_type = "PRelu", .inputs = {doubles({2, 3, 4}, 1, -4, 4), doubles({3, 1}, 2)}});
  check_gradients({.op_type = "Mod", .inputs = {doubles({4, 7}, 1, -9, 9), doubles({7}, 2, 1, 2)}, .attributes = {{"fmod", int64_t{1}}}});
  check_gradients({.op_type = "Clip", .inputs = {doubles({4, 7}, 1), Tensor::scalar(-0.5), Tensor::scalar(0.4)}});
}

TEST(ElementwiseGradients, RunningProductsHaveGradientsAtZeros) {
  Tensor x = doubles({3, 5}, 1);
  x.data<double>()[2] = x.data<double>()[6] = x.data<double>()[8] = 0;
  for (int64_t exclusive : {0, 1})
    for (int64_t reverse : {0, 1})
      for (const char* op : {"CumSum", "CumProd"})
        check_gradients(
            {.op_type = op, .inputs = {x, Tensor::scalar<int64_t>(1)}, .attributes = {{"exclusive", exclusive}, {"reverse", reverse}}});
  check_gradients({.op_type = "ReduceProd", .inputs = {x, indices({2}, {0, 1})}, .attributes = {{"keepdims", int64_t{0}}}});
}

TEST(ElementwiseGradients, FunctionsOfOneTensorFollowFiniteDifferences) {
  for (const char* op : {"Neg", "Exp", "Erf", "Sigmoid", "Tanh", "Gelu", "Softplus", "Swish", "Elu", "Sin", "Cos", "Identity",
                         "HardSigmoid", "Softsign", "Selu", "Celu"})
    check_gradients({.op_type = op, .inputs = {doubles({3, 5}, 1, -2, 2)}});
  check_gradients({.op_type = "GeluSlope", .inputs = {doubles({3, 5}, 1, -2, 2)}, .domain = "treadle"});
  for (const char* op : {"Log", "Sqrt", "Reciprocal"}) check_gradients({.op_type = op, .inputs = {doubles({3, 5}, 1, 0.5, 2)}});
}

// No sample lies so close to a kink that the two points of the finite difference are on different sides of the kink.
TEST(ElementwiseGradients, KinkedFunctionsFollowFiniteDifferencesOnBothSides) {
  for (const char* op : {"Relu", "Abs", "LeakyRelu", "HardSwish"}) check_gradients({.op_type = op, .inputs = {doubles({4, 7}, 1, -4, 4)}});
  check_gradients({.op_type = "LeakyRelu", .inputs = {doubles({4, 7}, 1)}, .attributes = {{"alpha", 0.3F}}});
  const Tensor low = Tensor::scalar(-0.5), high = Tensor::scalar(0.4);
  check_gradients({.op_type = "Clip", .inputs = {doubles({4, 7}, 1), low, high}, .constants = {1, 2}});
}

TEST(ElementwiseGradients, GeluByTanhAndScaledActivationsReadTheirAttributes) {
  check_gradients({.op_type = "Gelu", .inputs = {doubles({9}, 1, -2, 2)}, .attributes = {{"approximate", std::string("tanh")}}});
  check_gradients({.op_type = "Swish", .inputs = {doubles({9}, 1, -2, 2)}, .attributes = {{"alpha", 1.5F}}});
  check_gradients({.op_type = "Elu", .inputs = {doubles({9}, 1, -2, 2)}, .attributes = {{"alpha", 0.5F}}});
}

TEST(ElementwiseGradients, PowDifferentiatesByBaseAndByExponent) {
  for (double exponent : {2.0, 3.0, 0.5, -1.5})
    check_gradients({.op_type = "Pow", .inputs = {doubles({2, 3}, 1, 0.5, 2), Tensor::scalar(exponent)}, .constants = {1}});
  check_gradients({.op_type = "Pow", .inputs = {doubles({2, 3}, 1, 0.5, 2), doubles({3}, 2, -2, 2)}});
}

TEST(ElementwiseGradients, WhereSendsEachElementToTheSideItCameFrom) {
  Tensor condition(DType::boolean, {2, 1});
  condition.data<bool>()[0] = true, condition.data<bool>()[1] = false;
  check_gradients({.op_type = "Where", .inputs = {condition, doubles({2, 3}, 1), doubles({3}, 2)}});
}

TEST(ElementwiseGradients, CastsBetweenFloatsPassGradientsOn) {
  // The result is cast back to float64. In float32, rounding would hide the difference between the two points.
  check_gradients({.op_type = "Cast", .inputs = {doubles({4}, 1)}, .attributes = {{"to", int64_t{11}}}});
}

TEST(ElementwiseGradients, DropoutSendsGradientsThroughTheElementsThatStayed) {
  Tensor training(DType::boolean, {});
  *training.data<bool>() = true;
  const Tensor ratio = Tensor::scalar(0.4);
  check_gradients(
      {.op_type = "Dropout", .inputs = {doubles({5, 6}, 1), ratio, training}, .attributes = {{"seed", int64_t{5}}}, .constants = {1}});
  check_gradients({.op_type = "Dropout", .inputs = {doubles({5, 6}, 1)}});
}

TEST(ElementwiseGradients, SoftmaxesFollowFiniteDifferencesAlongAnyAxis) {
  for (const char* op : {"Softmax", "LogSoftmax"})
    for (int64_t axis : {-1, 0, 1})
      check_gradients({.op_type = op, .inputs = {doubles({3, 4, 2}, 1, -2, 2)}, .attributes = {{"axis", axis}}});
}

}  // namespace
}  // namespace treadle::testing
