#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/values/float_types.h"
#include "graph/infer.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(Arithmetic, BroadcastsBothOperands) {
  Tensor z = run_op({"Add", 14, {floats({2, 1, 3}, {1, 2, 3, 4, 5, 6}), floats({2, 1}, {10, 20})}})[0];
  EXPECT_EQ(z.shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(values<float>(z), (std::vector<float>{11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26}));
}

TEST(Arithmetic, OfOpset6AlignsBWithTheAxisThatItNames) {
  // ONNX 1.2 gives this example for Add-6: shape(A) = (2, 3, 4, 5), shape(B) = (3, 4), axis = 1. The test uses the shapes (2, 2, 1) and (2)
  // at axis 1.
  Tensor z =
      run_op({"Add", 6, {floats({2, 2, 1}, {1, 2, 3, 4}), floats({2}, {10, 20})}, {{"broadcast", int64_t{1}}, {"axis", int64_t{1}}}})[0];
  EXPECT_EQ(z.shape(), (Shape{2, 2, 1}));
  EXPECT_EQ(values<float>(z), (std::vector<float>{11, 22, 13, 24}));
}

TEST(Arithmetic, OfOpset1IgnoresConsumedInputs) {
  Tensor z = run_op({"Mul", 1, {floats({2}, {1, 2}), floats({2}, {3, 4})}, {{"consumed_inputs", std::vector<int64_t>{0, 0}}}})[0];
  EXPECT_EQ(values<float>(z), (std::vector<float>{3, 8}));
}

TEST(Arithmetic, OfIntegersWrapsAround) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(values<int64_t>(run_op({"Add", 14, {tensor<int64_t>({1}, {kMax}), tensor<int64_t>({1}, {1})}})[0])[0], kMin);
  EXPECT_EQ(values<uint16_t>(run_op({"Mul", 14, {tensor<uint16_t>({1}, {65535}), tensor<uint16_t>({1}, {65535})}})[0])[0], 1);
  EXPECT_EQ(values<int8_t>(run_op({"Sub", 14, {tensor<int8_t>({1}, {-128}), tensor<int8_t>({1}, {1})}})[0])[0], 127);
  EXPECT_EQ(values<int64_t>(run_op({"Div", 14, {tensor<int64_t>({1}, {kMin}), tensor<int64_t>({1}, {-1})}})[0])[0], kMin);
}

TEST(Pow, OfRootsFollowsIEEE754) {
  // IEEE 754 defines: pow(±0, y) is +0 for y > 0 unless y is an odd integer, and +inf for y < 0; pow(-inf, y) is +inf or +0. A square root
  // would give -0 or NaN.
  for (DType dtype : {DType::float32, DType::float64}) {
    auto power = [&](double exponent) {
      if (dtype == DType::float64)
        return values<double>(run_op({"Pow", 15, {tensor<double>({2}, {-0.0, -kInfinity}), tensor<double>({1}, {exponent})}})[0]);
      auto result = values<float>(run_op({"Pow", 15, {floats({2}, {-0.0F, -kInfinity}), floats({1}, {static_cast<float>(exponent)})}})[0]);
      return std::vector<double>(result.begin(), result.end());
    };
    EXPECT_EQ(power(0.5), (std::vector<double>{0, kInfinity}));
    EXPECT_FALSE(std::signbit(power(0.5)[0]));
    EXPECT_EQ(power(-0.5), (std::vector<double>{kInfinity, 0}));
  }
}

TEST(ThresholdedRelu, OfNaNIsZero) {
  // ONNX defines ThresholdedRelu as "y = x for x > alpha, y = 0 otherwise".
  EXPECT_EQ(values<float>(run_op({"ThresholdedRelu", 22, {floats({3}, {kNaN, 2, 1})}})[0]), (std::vector<float>{0, 2, 0}));
  EXPECT_EQ(values<double>(run_op({"ThresholdedRelu", 22, {tensor<double>({2}, {kNaN, 2})}})[0]), (std::vector<double>{0, 2}));
}

TEST(Arithmetic, DividesIntegersTowardsZeroAndRefusesZero) {
  EXPECT_EQ(values<int32_t>(run_op({"Div", 14, {tensor<int32_t>({3}, {-7, 7, -6}), tensor<int32_t>({}, {2})}})[0]),
            (std::vector<int32_t>{-3, 3, -3}));
  EXPECT_THROW(run_op({"Div", 14, {tensor<int32_t>({1}, {1}), tensor<int32_t>({1}, {0})}}), Error);
  EXPECT_THROW(run_op({"Mod", 28, {tensor<uint8_t>({1}, {1}), tensor<uint8_t>({1}, {0})}}), Error);
}

TEST(Mod, FollowsTheSpecificationsSpecialCases) {
  auto floored = [](float a, float b) { return values<float>(run_op({"Mod", 28, {floats({1}, {a}), floats({1}, {b})}})[0])[0]; };
  EXPECT_EQ(floored(-7, 3), 2);
  EXPECT_EQ(floored(7, -3), -2);
  EXPECT_TRUE(std::signbit(floored(0, -3)));
  EXPECT_EQ(floored(2, kInfinity), 2);
  EXPECT_EQ(floored(-2, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(floored(kInfinity, 2)));
  EXPECT_TRUE(std::isnan(floored(1, 0)));
}

// The expected values are those of numpy.power(base, exponent).
TEST(Pow, TakesAnyPairOfTypes) {
  EXPECT_EQ(values<float>(run_op({"Pow", 15, {floats({3}, {1, 2, 3}), tensor<int64_t>({3}, {4, 5, 6})}})[0]),
            (std::vector<float>{1, 32, 729}));
  EXPECT_EQ(values<int64_t>(run_op({"Pow", 15, {tensor<int64_t>({3}, {1, 2, 3}), floats({3}, {4, 5, 6})}})[0]),
            (std::vector<int64_t>{1, 32, 729}));
  EXPECT_EQ(values<int32_t>(run_op({"Pow", 15, {tensor<int32_t>({2}, {-2, 3}), tensor<uint8_t>({}, {5})}})[0]),
            (std::vector<int32_t>{-32, 243}));
}

// Expected values are computed by pow() in double. Beyond the range of the integers, ONNX defines nothing, and the result is that of the
// processor, as in onnxruntime.
TEST(Pow, OfIntegersThatGrowsTooLargeIsTheLowestOne) {
  const float exponents[] = {kInfinity, 70, 2, std::numeric_limits<float>::quiet_NaN()};
  const Tensor exponent = tensor<float>({4}, {exponents[0], exponents[1], exponents[2], exponents[3]});
  const auto lowest64 = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(values<int64_t>(run_op({"Pow", 15, {tensor<int64_t>({1}, {3}), exponent}})[0]),
            (std::vector<int64_t>{lowest64, lowest64, 9, lowest64}));
  const auto lowest32 = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(values<int32_t>(run_op({"Pow", 15, {tensor<int32_t>({1}, {-3}), exponent}})[0]),
            (std::vector<int32_t>{lowest32, lowest32, 9, lowest32}));
}

TEST(Pow, TakesExponentsThatFloatDoesNotHold) {
  EXPECT_EQ(values<float>(run_op({"Pow", 15, {floats({3}, {0, 0, kInfinity}), tensor<double>({3}, {5e-324, 0, 1e-300})}})[0]),
            (std::vector<float>{0, 1, kInfinity}));
  EXPECT_EQ(values<float>(run_op({"Pow", 15, {floats({2}, {-1, -1}), tensor<int64_t>({2}, {(1 << 24) + 1, 1 << 24})}})[0]),
            (std::vector<float>{-1, 1}));
}

TEST(Pow, BySmallConstantsIsExact) {
  for (float exponent : {2.0F, 3.0F, 1.0F, 0.5F, -1.0F, -0.5F, 4.0F}) {
    Tensor z = run_op({"Pow", 15, {floats({4}, {0.25F, 1, 2.5F, 16}), floats({}, {exponent})}})[0];
    const float bases[] = {0.25F, 1, 2.5F, 16};
    for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(values<float>(z)[i], std::pow(bases[i], exponent)) << exponent;
  }
}

TEST(Comparison, OfOpset1Broadcasts) {
  Tensor z =
      run_op({"Greater", 1, {floats({2, 2}, {1, 5, 3, 2}), floats({2}, {2, 4})}, {{"broadcast", int64_t{1}}, {"axis", int64_t{0}}}})[0];
  EXPECT_EQ(values<bool>(z), (std::vector<bool>{false, true, false, false}));
}

TEST(Comparison, OfStringsIsByText) {
  std::vector<std::string> a = {"a", "b"}, b = {"a", "c"};
  Tensor z = run_op({"Equal", 19, {Tensor::strings({2}, a), Tensor::strings({2}, b)}})[0];
  EXPECT_EQ(values<bool>(z), (std::vector<bool>{true, false}));
}

TEST(MaxMin, KeepNaNWhereverItStands) {
  for (const char* op : {"Max", "Min"}) {
    Tensor z = run_op({op, 13, {floats({3}, {kNaN, 1, 2}), floats({3}, {1, kNaN, 3}), floats({3}, {0, 0, kNaN})}})[0];
    for (float v : values<float>(z)) EXPECT_TRUE(std::isnan(v)) << op;
  }
}

TEST(Variadic, SumAndMeanTakeAnyNumberOfOperands) {
  Tensor a = floats({2}, {1, 2}), b = floats({1}, {10}), c = floats({2, 1}, {100, 200});
  EXPECT_EQ(values<float>(run_op({"Sum", 13, {a, b, c}})[0]), (std::vector<float>{111, 112, 211, 212}));
  EXPECT_EQ(values<float>(run_op({"Mean", 13, {a, b}})[0]), (std::vector<float>{5.5F, 6}));
  EXPECT_EQ(values<float>(run_op({"Mean", 13, {a}})[0]), (std::vector<float>{1, 2}));
}

TEST(Where, MovesStringsAndBroadcastsAllThree) {
  std::vector<std::string> x = {"x0", "x1"}, y = {"y"};
  Tensor z = run_op({"Where", 16, {tensor<bool>({2, 1}, {true, false}), Tensor::strings({2}, x), Tensor::strings({1}, y)}})[0];
  EXPECT_EQ(values<std::string>(z), (std::vector<std::string>{"x0", "x1", "y", "y"}));
}

TEST(Rounding, AgreesWithTheLibraryOnHardNumbers) {
  std::vector<float> x = {0.5F,  -0.5F,  1.5F, 2.5F,  -2.5F, 0.49999997F, -0.49999997F, 8388607.5F, -8388608.5F,
                          1e30F, -1e30F, 0,    -0.0F, 1.1F,  -1.1F,       3e9F,         1e-40F,     -1e-40F};
  auto n = static_cast<int64_t>(x.size());
  auto round = values<float>(run_op({"Round", 22, {floats({n}, x)}})[0]), floor = values<float>(run_op({"Floor", 13, {floats({n}, x)}})[0]),
       ceil = values<float>(run_op({"Ceil", 13, {floats({n}, x)}})[0]);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(round[i], std::nearbyint(x[i])) << x[i];
    EXPECT_EQ(floor[i], std::floor(x[i])) << x[i];
    EXPECT_EQ(ceil[i], std::ceil(x[i])) << x[i];
    EXPECT_EQ(std::signbit(round[i]), std::signbit(std::nearbyint(x[i]))) << x[i];
    EXPECT_EQ(std::signbit(ceil[i]), std::signbit(std::ceil(x[i]))) << x[i];
  }
  EXPECT_TRUE(std::isnan(values<float>(run_op({"Round", 22, {floats({1}, {kNaN})}})[0])[0]));
  EXPECT_EQ(values<float>(run_op({"Floor", 13, {floats({1}, {-kInfinity})}})[0])[0], -kInfinity);
}

TEST(Unary, OfHalfPrecisionIsTheRoundedFloatResult) {
  std::vector<Float16> x;
  for (int i = -40; i < 40; ++i) x.emplace_back(0.1F * static_cast<float>(i));
  auto n = static_cast<int64_t>(x.size());
  auto y = values<Float16>(run_op({"Tanh", 13, {tensor<Float16>({n}, x)}})[0]);
  for (size_t i = 0; i < x.size(); ++i) {
    float exact = std::tanh(static_cast<float>(x[i]));
    EXPECT_NEAR(static_cast<float>(y[i]), exact, 0x1p-11F * std::fabs(exact) + 1e-6F);
  }
}

TEST(Clip, OfOpset6HasItsBoundsAsAttributes) {
  Tensor x = floats({3}, {-5, 0.5F, 5});
  EXPECT_EQ(values<float>(run_op({"Clip", 6, {x}, {{"min", -1.0F}, {"max", 1.0F}}})[0]), (std::vector<float>{-1, 0.5F, 1}));
  EXPECT_EQ(values<float>(run_op({"Clip", 6, {x}, {{"max", 1.0F}}})[0]), (std::vector<float>{-5, 0.5F, 1}));
  Tensor half = tensor<Float16>({2}, {Float16(-5.0F), Float16(5.0F)});
  EXPECT_EQ(values<Float16>(run_op({"Clip", 6, {half}, {{"min", 0.0F}}})[0]), (std::vector<Float16>{Float16(0.0F), Float16(5.0F)}));
}

TEST(Clip, GivesTheMaximumWhereTheBoundsCross) {
  EXPECT_EQ(values<float>(run_op({"Clip", 13, {floats({2}, {-5, 5}), floats({}, {2}), floats({}, {1})}})[0]), (std::vector<float>{1, 1}));
  EXPECT_EQ(values<int64_t>(run_op({"Clip", 13, {tensor<int64_t>({2}, {-5, 5}), tensor<int64_t>({}, {2}), tensor<int64_t>({}, {1})}})[0]),
            (std::vector<int64_t>{1, 1}));
}

TEST(PRelu, OfOpset6HasOneSlopePerChannel) {
  Tensor y = run_op({"PRelu", 6, {floats({1, 2, 2}, {-1, 1, -1, 1}), floats({2}, {0.5F, 0.25F})}})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{-0.5F, 1, -0.25F, 1}));
}

TEST(PRelu, RefusesASlopeThatWouldStretchX) {
  EXPECT_THROW(run_op({"PRelu", 16, {floats({1, 2}, {-1, 1}), floats({3, 1}, {1, 2, 3})}}), Error);
}

TEST(BitShift, BeyondTheWidthLeavesTheSign) {
  Tensor x = tensor<int8_t>({3}, {-128, 64, -1}), by = tensor<int8_t>({3}, {9, -1, 8});
  EXPECT_EQ(values<int8_t>(run_op({"BitShift", 28, {x, by}, {{"direction", std::string("RIGHT")}}})[0]), (std::vector<int8_t>{-1, 0, -1}));
  EXPECT_EQ(values<int8_t>(run_op({"BitShift", 28, {x, by}, {{"direction", std::string("LEFT")}}})[0]), (std::vector<int8_t>{0, 0, 0}));
}

// Tests arithmetic on shapes, and what inference knows about the integers.
TEST(KnownValues, FlowThroughArithmeticOnShapes) {
  Graph graph(std::make_shared<SymbolTable>());
  Dim h = graph.symbols().symbol("h");
  ValueId x = graph.add_input("x", Type::tensor(DType::float32, {h, Dim(4)}));
  auto node = [&](const char* op, std::vector<ValueId> inputs) {
    NodeId id = graph.add_node({.op_type = op, .inputs = std::move(inputs)});
    infer_node(graph, id);
    return graph.node(id).outputs[0];
  };
  auto known = [&](ValueId id) { return graph.value(id).known.value_or(std::vector<Dim>{}); };
  auto ints = [&](std::vector<int64_t> v) { return graph.add_constant("c", Tensor::vector<int64_t>(v)); };
  ValueId shape = node("Shape", {x});
  EXPECT_EQ(known(node("Mul", {node("Add", {shape, ints({1})}), ints({2})})), (std::vector<Dim>{h * 2 + 2, Dim(10)}));
  EXPECT_EQ(known(node("Div", {node("Mul", {shape, ints({6, 3})}), ints({3, -2})})), (std::vector<Dim>{h * 2, Dim(-6)}));
  EXPECT_EQ(known(node("ReduceProd", {shape})), (std::vector<Dim>{h * 4}));
  EXPECT_EQ(known(node("Max", {shape, ints({3})})), (std::vector<Dim>{maximum(h, Dim(3)), Dim(4)}));
  // No extent is -1, whatever the value of the symbol. Exporters write this comparison before an Expand.
  ValueId is_minus_one = node("Equal", {shape, ints({-1})});
  EXPECT_EQ(known(is_minus_one), (std::vector<Dim>{Dim(0), Dim(0)}));
  EXPECT_EQ(known(node("Where", {is_minus_one, ints({7}), shape})), (std::vector<Dim>{h, Dim(4)}));
  // Division of a number that may be negative rounds towards zero, which an expression cannot represent.
  EXPECT_TRUE(known(node("Div", {node("Sub", {shape, ints({9})}), ints({2})})).empty());
}

}  // namespace
}  // namespace treadle
