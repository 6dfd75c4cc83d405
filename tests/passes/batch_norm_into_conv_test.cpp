#include "graph/parameters.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

// Returns a constant with elements in [0.5, 1.5), as variances must be positive.
ValueId positive(GraphBuilder& b, std::string_view name, int64_t count, uint32_t seed) {
  Tensor tensor = GraphBuilder::random_tensor(Shape{count}, seed);
  for (float& x : tensor.span<float>()) x = x / 2 + 1;
  return b.graph().add_constant(name, tensor);
}

std::vector<ValueId> statistics(GraphBuilder& b, ValueId x, int64_t channels) {
  return {x, positive(b, "scale", channels, 1), b.weights("offset", Shape{channels}), positive(b, "mean", channels, 2),
          positive(b, "var", channels, 3)};
}

TEST(BatchNormIntoConv, ScalesTheWeightsAndShiftsTheBias) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 4, 6, 6});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("W", Shape{10, 2, 3, 3}), b.weights("B", Shape{10})}, {{"group", int64_t{2}}});
  ValueId y = b.op("y", "BatchNormalization", statistics(b, conv, 10), {{"epsilon", 1e-3F}});
  b.output(b.op("relu", "Relu", {y}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,4,6,6]) {
  %W = constant f32[10,2,3,3] {...}
  %B = constant f32[10] {...}
  %scale = constant f32[10] {...}
  %offset = constant f32[10] {...}
  %mean = constant f32[10] {...}
  %var = constant f32[10] {...}
  %conv f32[n,10,4,4] = Conv(%x, %W, %B) {group=2}
  %y f32[n,10,4,4] = BatchNormalization(%conv, %scale, %offset, %mean, %var) {epsilon=0.001}
  %relu f32[n,10,4,4] = Relu(%y)
  return %relu
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::batch_norm_into_conv), 1, 1e-6), R"(graph g(%x f32[n,4,6,6]) {
  %W_1 = constant f32[10,2,3,3] {...}
  %conv_node/bias = constant f32[10] {...}
  %y f32[n,10,4,4] = Conv(%x, %W_1, %conv_node/bias) {group=2}
  %relu f32[n,10,4,4] = Relu(%y)
  return %relu
}
)");
}

TEST(BatchNormIntoConv, OfParametersIsComputedFromThem) {
  for (const bool has_bias : {false, true}) {
    GraphBuilder b;
    auto parameter = [&](ValueId id) {
      b.graph().value(id).kind = Value::Kind::parameter;
      return id;
    };
    ValueId x = b.input("x", {b.symbol("n"), 4, 6, 6});
    std::vector<ValueId> operands{x, parameter(b.weights("W", Shape{10, 2, 3, 3}))};
    if (has_bias) operands.push_back(parameter(b.weights("B", Shape{10})));
    std::vector<ValueId> normalized = statistics(b, b.op("conv", "Conv", operands, {{"group", int64_t{2}}}), 10);
    for (size_t i = 1; i < normalized.size(); ++i) parameter(normalized[i]);
    b.output(b.op("y", "BatchNormalization", normalized, {{"epsilon", 1e-3F}}));
    auto graph = b.take();
    testing::changed(*graph, testing::pass(passes::batch_norm_into_conv), 1, 1e-6);
    const Node& conv = graph->node(graph->value(graph->outputs[0]).producer);
    ASSERT_TRUE(conv.is("Conv"));
    EXPECT_EQ(conv.inputs[0], x);
    EXPECT_TRUE(is_stored(*graph, conv.inputs[1]) && is_stored(*graph, conv.inputs[2])) << "kernels can pack them";
  }
}

TEST(BatchNormIntoConv, LeavesParametersThatAreMuchMoreThanTheImage) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 64, 3, 3}), w = b.weights("W", Shape{10, 64, 3, 3});
  b.graph().value(w).kind = Value::Kind::parameter;
  b.output(b.op("y", "BatchNormalization", statistics(b, b.op("conv", "Conv", {x, w}), 10)));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::batch_norm_into_conv));
}

TEST(BatchNormIntoConv, KnowsTheChannelsOfATransposedConvolution) {
  for (int64_t group : {1, 2}) {
    GraphBuilder b;
    ValueId x = b.input("x", {2, 4, 5, 5});
    ValueId conv = b.op("conv", "ConvTranspose", {x, b.weights("W", Shape{4, 6 / group, 3, 3})}, {{"group", group}});
    b.output(b.op("y", "BatchNormalization", statistics(b, conv, 6)));
    auto graph = b.take();
    testing::changed(*graph, testing::pass(passes::batch_norm_into_conv), 1, 1e-6);
    EXPECT_EQ(graph->num_nodes(), 1U);
    EXPECT_EQ(graph->node(graph->first()).sources, (std::vector<std::string>{"conv", "y"}));
  }
}

TEST(BatchNormIntoConv, TakesConstantsOfOneNumberAndOfOneForEachChannel) {
  for (const char* type : {"Mul", "Div", "Add", "Sub"}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{6, 1, 1}, Shape{1, 6, 1, 1}}) {
      for (bool transposed : {false, true}) {
        GraphBuilder b;
        ValueId x = b.input("x", {2, 4, 5, 5});
        ValueId w = transposed ? b.weights("W", Shape{4, 3, 3, 3}) : b.weights("W", Shape{6, 2, 3, 3});
        ValueId conv = b.op("conv", transposed ? "ConvTranspose" : "Conv", {x, w, b.weights("B", Shape{6})}, {{"group", int64_t{2}}});
        Tensor numbers = GraphBuilder::random_tensor(shape, 4);
        for (float& number : numbers.span<float>()) number += 2;
        ValueId c = b.graph().add_constant("c", numbers);
        b.output(b.op("y", type, {conv, c}));
        auto graph = b.take();
        testing::changed(*graph, testing::pass(passes::batch_norm_into_conv), 1, 1e-6);
        EXPECT_EQ(graph->num_nodes(), 1U) << type;
      }
    }
  }
}

TEST(BatchNormIntoConv, LeavesConstantsOfOtherShapesAndQuotientsByTheConvolution) {
  auto unchanged = [](const char* type, const Shape& shape, bool constant_first) {
    GraphBuilder b;
    ValueId conv = b.op("conv", "Conv", {b.input("x", {1, 4, 6, 6}), b.weights("W", Shape{6, 4, 1, 1})});
    ValueId c = b.weights("c", shape);
    b.output(b.op("y", type, constant_first ? std::vector<ValueId>{c, conv} : std::vector<ValueId>{conv, c}));
    auto graph = b.take();
    testing::expect_unchanged(*graph, testing::pass(passes::batch_norm_into_conv));
  };
  unchanged("Mul", Shape{6}, false);  // this constant applies to the last axis, not to channels
  unchanged("Add", Shape{6, 6}, false);
  unchanged("Add", Shape{2, 6, 1, 1}, false);  // the sum is larger than the convolution's output
  unchanged("Div", Shape{6, 1, 1}, true);
  unchanged("Sub", Shape{6, 1, 1}, true);
}

TEST(BatchNormIntoConv, LeavesAConvolutionThatOthersRead) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 4, 6, 6});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("W", Shape{6, 4, 3, 3})});
  b.output(b.op("y", "BatchNormalization", statistics(b, conv, 6)));
  auto graph = b.take();
  graph->outputs.push_back(conv);
  testing::expect_unchanged(*graph, testing::pass(passes::batch_norm_into_conv));
}

}  // namespace
}  // namespace treadle
