#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout.h"
#include "passes/pipeline.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using passes::assign_layout;
using passes::fuse_conv;
using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

int64_t everything(Graph& graph) { return assign_layout(graph, INT64_MAX); }

int count(const Graph& graph, std::string_view type, std::string_view domain = "") {
  int n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(type, domain) ? 1 : 0;
  return n;
}

/// Applies the pass, and checks that results agree up to rounding. @return the number of nodes that get the layout with channels last
int64_t same_results(Graph& graph, double tolerance = 3e-6) {
  std::unique_ptr<Graph> original = graph.clone();
  const int64_t moved = everything(graph) + testing::pass(passes::fuse_conv)(graph);
  verify(graph);
  infer(graph);
  std::vector<Datum> feeds = testing::random_feeds(*original), before = testing::run_graph(*original, feeds),
                     after = testing::run_graph(graph, feeds);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_LE(testing::relative_difference(after[i], before[i]), tolerance) << "output " << i;
  return moved;
}

TEST(AssignLayout, TransposesStandAtTheBordersOnly) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3, 12, 10});
  ValueId first = b.op("first", "Conv", {x, b.weights("w1", {8, 3, 3, 3}), b.weights("b1", {8})}, {{"pads", Ints{1, 1, 1, 1}}});
  ValueId act = b.op("act", "Relu", {first});
  ValueId second = b.op("second", "Conv", {act, b.weights("w2", {8, 8, 1, 1})});
  ValueId sum = b.op("sum", "Add", {act, second});
  ValueId pooled = b.op("pooled", "MaxPool", {sum}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
  b.output(b.op("y", "Concat", {pooled, pooled}, {{"axis", int64_t{1}}}));
  auto graph = b.take();
  EXPECT_GT(same_results(*graph), 5);
  EXPECT_EQ(count(*graph, "Transpose"), 2);
  EXPECT_EQ(count(*graph, "NhwcConv", "treadle"), 2);
  EXPECT_EQ(count(*graph, "Relu"), 0);
  EXPECT_EQ(count(*graph, "Add"), 0);
}

TEST(AssignLayout, SymbolsAndEveryOperatorThatFollows) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 4, b.symbol("h"), b.symbol("w")});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("w1", {6, 4, 3, 3})}, {{"pads", Ints{1, 1, 1, 1}}});
  ValueId norm = b.op(
      "norm", "BatchNormalization",
      {b.op("act", "LeakyRelu", {conv}), b.weights("s", {6}), b.weights("o", {6}), b.weights("m", {6}), b.floats("v", {1, 2, 1, 1, 2, 3})});
  ValueId slope = b.op("slope", "PRelu", {norm, b.weights("slopes", {6, 1, 1})});
  ValueId gate = b.op("gate", "Sigmoid", {b.op("mean", "GlobalAveragePool", {slope})});
  ValueId scaled = b.op("scaled", "Mul", {slope, gate});
  ValueId large = b.op("large", "Resize", {scaled, kNoValue, b.floats("scales", {1, 1, 2, 2})}, {{"mode", std::string("linear")}});
  ValueId padded = b.op("padded", "Pad", {large, b.ints("pads", {0, 0, 1, 2, 0, 1, 0, 1})});
  ValueId cut = b.op("cut", "Slice", {padded, b.ints("starts", {1}), b.ints("ends", {5}), b.ints("axes", {1})});
  ValueId soft = b.op("soft", "Softmax", {cut}, {{"axis", int64_t{1}}});
  b.output(soft);
  b.output(b.op("shape", "Shape", {soft}));
  b.output(b.op("flat", "ReduceMean", {soft, b.ints("spatial", {2, 3})}, {{"keepdims", int64_t{0}}}));
  auto graph = b.take();
  EXPECT_GT(same_results(*graph), 8);
  EXPECT_EQ(count(*graph, "Transpose"), 2);
}

TEST(AssignLayout, TransposesOfTheModelIntoThisLayoutVanish) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 8, 6, 6});
  ValueId deep = b.op("deep", "Conv", {x, b.weights("w1", {8, 1, 3, 3})}, {{"pads", Ints{1, 1, 1, 1}}, {"group", int64_t{8}}});
  ValueId last = b.op("last", "Transpose", {deep}, {{"perm", Ints{0, 2, 3, 1}}});
  ValueId up = b.op("up", "MatMul", {last, b.weights("w2", {8, 8})});
  ValueId back = b.op("back", "Transpose", {up}, {{"perm", Ints{0, 3, 1, 2}}});
  b.output(b.op("y", "Add", {x, back}));
  b.output(b.op("z", "Conv", {back, b.weights("w3", {4, 8, 2, 2})}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "Transpose"), 3);  // transposes of x, which comes in, and of y and z, which go out
}

TEST(AssignLayout, IntegerConvolutionsAndWhatMakesFloatsOfThemMove) {
  if (!kernels::has_fast_byte_products()) GTEST_SKIP() << "they stay on this machine";
  GraphBuilder b;
  ValueId x = b.input("x", {1, 4, 7, 6}, DType::uint8);
  std::vector<int8_t> weights;
  for (int i = 0; i < 5 * 4 * 9; ++i) weights.push_back(static_cast<int8_t>(i * 37 % 255 - 127));
  ValueId sums = b.op("sums", "ConvInteger", {x, b.constant<int8_t>("w", {5, 4, 3, 3}, weights), b.constant<uint8_t>("zero", {}, {101})},
                      {{"pads", Ints{1, 1, 0, 2}}});
  ValueId y = b.op("y", "Mul", {b.op("real", "Cast", {sums}, {{"to", int64_t{1}}}), b.input("scale", {1})});
  const std::vector<ValueId> codes = b.node("codes", "DynamicQuantizeLinear", {y}, {}, 3);
  for (ValueId code : codes) b.output(code);
  auto graph = b.take();
  EXPECT_EQ(same_results(*graph, 0), 4);
  EXPECT_EQ(count(*graph, "NhwcConvInteger", "treadle"), 1);
  EXPECT_EQ(count(*graph, "Transpose"), 2);
}

TEST(AssignLayout, TransposedConvolutionsWithoutOverlapMoveAndOthersStay) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 5, 4, 3});
  ValueId up = b.op("up", "ConvTranspose", {x, b.weights("w1", {5, 7, 2, 2}), b.weights("bias", {7})}, {{"strides", Ints{2, 2}}});
  b.output(b.op("y", "Relu", {up}));
  b.output(b.op("z", "ConvTranspose", {up, b.weights("w2", {7, 2, 3, 3})}, {{"strides", Ints{2, 2}}}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "NhwcConvTranspose", "treadle"), 1);
  EXPECT_EQ(count(*graph, "ConvTranspose"), 1);
}

TEST(AssignLayout, InstanceAndGroupNormalizationFollowAndTakeARelu) {
  for (bool groups : {false, true}) {
    GraphBuilder b;
    ValueId x = b.input("x", {b.symbol("n"), 4, b.symbol("h"), 7});
    ValueId conv = b.op("conv", "Conv", {x, b.weights("w1", {6, 4, 3, 3})}, {{"pads", Ints{1, 1, 1, 1}}});
    const std::vector<ValueId> operands{conv, b.weights("s", {6}), b.input("o", {6})};
    ValueId norm = groups ? b.op("norm", "GroupNormalization", operands, {{"num_groups", int64_t{3}}, {"epsilon", 1e-3F}})
                          : b.op("norm", "InstanceNormalization", operands, {{"epsilon", 1e-3F}});
    ValueId act = b.op("act", "Relu", {norm});
    ValueId last =
        b.op("last", "InstanceNormalization", {b.op("conv2", "Conv", {act, b.weights("w2", {6, 6, 1, 1})}), operands[1], operands[2]});
    b.output(b.op("y", "Sigmoid", {last}));
    auto graph = b.take();
    EXPECT_GE(same_results(*graph, 1e-5), 5);
    EXPECT_EQ(count(*graph, "Transpose"), 2);
    EXPECT_EQ(count(*graph, "NhwcGroupNormalization", "treadle"), 2);
    EXPECT_EQ(count(*graph, "Relu"), 0);
    EXPECT_EQ(count(*graph, "Sigmoid"), 1);  // the convolution only takes in a Relu
  }
}

TEST(AssignLayout, NormalizationOfWhatDoesNotMoveStays) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 4, 6, 6});
  b.output(b.op("y", "InstanceNormalization", {x, b.weights("s", {4}), b.weights("o", {4})}));
  auto graph = b.take();
  EXPECT_EQ(same_results(*graph), 0);
}

TEST(AssignLayout, LeavesConvolutionsWithComputedWeightsAlone) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8});
  b.output(b.op("y", "Relu", {b.op("conv", "Conv", {x, b.input("w", {4, 3, 3, 3})})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, everything);
}

TEST(FuseConv, GatesOfTheOwnValueBecomeSiluAndHardSwish) {
  for (bool hard : {false, true}) {
    GraphBuilder b;
    ValueId x = b.input("x", {1, 3, 8, 8});
    ValueId conv = b.op("conv", "Conv", {x, b.weights("w", {70, 3, 3, 3})});
    ValueId gate = hard ? b.op("gate", "HardSigmoid", {conv}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}}) : b.op("gate", "Sigmoid", {conv});
    b.output(b.op("y", "Mul", {conv, gate}));
    auto graph = b.take();
    same_results(*graph);
    EXPECT_EQ(count(*graph, "Mul"), 0);
  }
}

TEST(FuseConv, ScaledAndShiftedHardSwishEndsTheConvolution) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 5, 7, 7});
  ValueId act = b.op("act", "HardSwish", {b.op("conv", "Conv", {x, b.weights("w", {9, 5, 1, 1})})});
  ValueId scaled = b.op("scaled", "Mul", {b.scalar("s", 0.75F), act});
  ValueId shifted = b.op("shifted", "Add", {scaled, b.scalar("t", -0.25F)});
  b.output(b.op("y", "Mul", {shifted, b.scalar("u", 2)}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "Mul") + count(*graph, "Add") + count(*graph, "HardSwish"), 0);
  for (NodeId id : graph->order()) {
    const Node& node = graph->node(id);
    if (!node.is("NhwcConv", "treadle")) continue;
    EXPECT_EQ(node.attributes.get_string("activation"), "scaled_hard_swish");
    EXPECT_EQ(node.attributes.get_float("alpha"), 1.5F);
    EXPECT_EQ(node.attributes.get_float("beta"), -0.5F);
  }
}

TEST(FuseConv, ScalesOfAChannelAndOfOtherActivationsStay) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 5, 7, 7});
  ValueId act = b.op("act", "HardSwish", {b.op("conv", "Conv", {x, b.weights("w", {9, 5, 1, 1})})});
  ValueId scaled = b.op("scaled", "Mul", {act, b.weights("s", {1, 9, 1, 1})});
  ValueId relu = b.op("relu", "Relu", {b.op("conv2", "Conv", {scaled, b.weights("v", {4, 9, 1, 1})})});
  b.output(b.op("y", "Mul", {relu, b.scalar("t", 2)}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "Mul"), 2);
}

ValueId pair_of(GraphBuilder& b, ValueId x, int64_t inputs, int64_t channels, const std::string& name) {
  ValueId wide = b.op(name + "wide", "Conv", {x, b.weights(name + "w", {channels, inputs, 1, 1}), b.weights(name + "b", {channels})});
  ValueId act = b.op(name + "act", "Relu", {wide});
  return b.op(name + "deep", "Conv", {act, b.weights(name + "d", {channels, 1, 3, 3}), b.weights(name + "e", {channels})},
              {{"group", channels}, {"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{2, 1}}});
}

// In a session's pipeline, these passes must run. Without them only the speed would change, which no other test notices.
TEST(FuseDepthwise, IsPartOfThePipeline) {
  GraphBuilder b;
  b.output(pair_of(b, b.input("x", {1, 5, b.symbol("h"), b.symbol("w")}), 5, 20, ""));
  auto graph = b.take(), halves = graph->clone();
  passes::optimize(*graph, {.verify = true});
  EXPECT_EQ(count(*graph, "NhwcConvDepthwise", "treadle"), 1);
  passes::PipelineOptions options{.verify = true};
  options.precision = passes::PrecisionRules::parse("bfloat16");
  passes::optimize(*halves, options);
  EXPECT_EQ(count(*halves, "NhwcConvDepthwise", "treadle"), 0) << "the two together compute in float32 only";
}

TEST(FuseDepthwise, JoinsAPointwiseConvolutionWithTheDepthwiseOneThatReadsIt) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 5, b.symbol("h"), b.symbol("w")});
  ValueId deep = b.op("clip", "Clip", {pair_of(b, x, 5, 20, ""), b.scalar("low", 0), b.scalar("high", 6)});
  b.output(b.op("y", "Conv", {deep, b.weights("last", {3, 20, 1, 1})}));
  auto graph = b.take();
  std::unique_ptr<Graph> original = graph->clone();
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  EXPECT_EQ(testing::pass(passes::fuse_depthwise)(*graph), 1);
  verify(*graph);
  infer(*graph);
  EXPECT_EQ(count(*graph, "NhwcConvDepthwise", "treadle"), 1);
  EXPECT_EQ(count(*graph, "NhwcConv", "treadle"), 1);
  std::vector<Datum> feeds = testing::random_feeds(*original), before = testing::run_graph(*original, feeds),
                     after = testing::run_graph(*graph, feeds);
  EXPECT_LE(testing::relative_difference(after[0], before[0]), 3e-6);
}

// Makes the first convolution of a network, which reads images with channels first, and a depthwise convolution after it, with any windows.
TEST(FuseDepthwise, JoinsAConvolutionOfColorsToo) {
  for (int64_t colors : {3, 5}) {
    GraphBuilder b;
    ValueId x = b.input("x", {2, colors, b.symbol("h"), 11});
    ValueId first = b.op("first", "Conv", {x, b.weights("w", {20, colors, 3, 2}), b.weights("b", {20})},
                         {{"pads", Ints{1, 0, 1, 1}}, {"strides", Ints{2, 1}}, {"dilations", Ints{1, 2}}});
    b.output(
        b.op("deep", "Conv", {b.op("act", "Relu", {first}), b.weights("d", {20, 1, 5, 3})}, {{"group", 20}, {"pads", Ints{2, 1, 2, 1}}}));
    auto graph = b.take();
    std::unique_ptr<Graph> original = graph->clone();
    passes::optimize(*graph, {.verify = true});
    EXPECT_EQ(count(*graph, "NhwcConvDepthwise", "treadle"), colors == 3 ? 1 : 0);
    infer(*graph);
    std::vector<Datum> feeds = testing::random_feeds(*original), before = testing::run_graph(*original, feeds),
                       after = testing::run_graph(*graph, feeds);
    EXPECT_LE(testing::relative_difference(after[0], before[0]), 3e-6);
  }
}

/// Makes a squeeze-and-excite block: x times a gate per channel, and a convolution of the result.
ValueId excited(GraphBuilder& b, ValueId x, int64_t channels, const std::string& name, int64_t kernel = 1) {
  ValueId mean = b.op(name + "mean", "GlobalAveragePool", {x});
  ValueId squeezed = b.op(name + "relu", "Relu", {b.op(name + "squeeze", "Conv", {mean, b.weights(name + "a", {3, channels, 1, 1})})});
  ValueId gate = b.op(name + "gate", "Sigmoid", {b.op(name + "excite", "Conv", {squeezed, b.weights(name + "b", {channels, 3, 1, 1})})});
  return b.op(name + "project", "Conv",
              {b.op(name + "scaled", "Mul", {gate, x}), b.weights(name + "p", {4, channels, kernel, kernel}), b.weights(name + "c", {4})});
}

TEST(FuseScale, APointwiseConvolutionTakesTheScalingOfItsChannels) {
  GraphBuilder b;
  ValueId x = b.op("first", "Conv", {b.input("x", {b.symbol("n"), 5, b.symbol("h"), 6}), b.weights("w", {9, 5, 1, 1})});
  b.output(b.op("y", "Relu", {excited(b, x, 9, "")}));
  auto graph = b.take();
  std::unique_ptr<Graph> original = graph->clone();
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  EXPECT_EQ(testing::pass(passes::fuse_scale)(*graph), 1);
  verify(*graph);
  infer(*graph);
  EXPECT_EQ(count(*graph, "Mul"), 0);
  EXPECT_EQ(count(*graph, "NhwcScaledPointwise", "treadle"), 1);
  std::vector<Datum> feeds = testing::random_feeds(*original), before = testing::run_graph(*original, feeds),
                     after = testing::run_graph(*graph, feeds);
  EXPECT_LE(testing::relative_difference(after[0], before[0]), 3e-6);
}

TEST(FuseScale, LeavesLargerWindowsProductsThatOthersReadAndFactorsOfOtherShapes) {
  GraphBuilder b;
  ValueId x = b.op("first", "Conv", {b.input("x", {2, 5, 7, 6}), b.weights("w", {9, 5, 1, 1})});
  b.output(excited(b, x, 9, "large", 3));
  b.output(excited(b, x, 9, "read"));
  ValueId rows = b.op("rows", "Mul", {x, b.op("mean", "ReduceMean", {x, b.ints("axes", {3})})});
  b.output(b.op("last", "Conv", {rows, b.weights("v", {3, 9, 1, 1})}));
  auto graph = b.take();
  for (NodeId id : graph->order())
    if (graph->node(id).name == "readscaled_node") graph->outputs.push_back(graph->node(id).outputs[0]);
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  EXPECT_EQ(testing::pass(passes::fuse_scale)(*graph), 0);
}

TEST(FuseDepthwise, LeavesSmallImagesAndThoseThatOthersRead) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 5, 12, 12}), large = b.input("large", {1, 5, 120, 120});
  b.output(pair_of(b, x, 5, 20, "small"));
  ValueId deep = pair_of(b, large, 5, 20, "read");
  b.output(deep);
  auto graph = b.take();
  graph->outputs.push_back(graph->node(graph->value(deep).producer).inputs[0]);
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  EXPECT_EQ(testing::pass(passes::fuse_depthwise)(*graph), 0);
}

TEST(ReadPlanes, TheFirstConvolutionReadsTheInputAsItIs) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3, b.symbol("h"), b.symbol("w")});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("w1", {8, 3, 3, 3}), b.weights("b1", {8})}, {{"pads", Ints{1, 1, 1, 1}}});
  b.output(b.op("y", "Conv", {b.op("act", "Relu", {conv}), b.weights("w2", {4, 8, 1, 1})}));
  auto graph = b.take();
  std::unique_ptr<Graph> original = graph->clone();
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  std::unique_ptr<Graph> transposed = graph->clone();
  EXPECT_EQ(testing::pass(passes::read_planes)(*graph), 1);
  verify(*graph);
  infer(*graph);
  EXPECT_EQ(count(*graph, "Transpose"), 1) << "the one at the output";
  const std::vector<Datum> feeds = testing::random_feeds(*original), exact = testing::run_graph(*original, feeds),
                           before = testing::run_graph(*transposed, feeds), after = testing::run_graph(*graph, feeds);
  EXPECT_LE(testing::relative_difference(after[0], exact[0]), 3e-6);
  EXPECT_EQ(testing::relative_difference(after[0], before[0]), 0);
  passes::optimize(*original, {.verify = true});
  EXPECT_EQ(count(*original, "Transpose"), 1) << "part of the pipeline";
}

TEST(ReadPlanes, LeavesManyChannelsNoPadsInnerValuesAndInputsReadTwice) {
  GraphBuilder b;
  const Ints pads{1, 1, 1, 1};
  b.output(b.op("many", "Conv", {b.input("a", {1, 5, 9, 9}), b.weights("w1", {8, 5, 3, 3})}, {{"pads", pads}}));
  b.output(b.op("bare", "Conv", {b.input("b", {1, 3, 9, 9}), b.weights("w2", {8, 3, 3, 3})}));
  ValueId inner = b.op("inner", "Softmax", {b.input("c", {1, 3, 9, 9})});
  b.output(b.op("behind", "Conv", {inner, b.weights("w3", {8, 3, 3, 3})}, {{"pads", pads}}));
  ValueId twice = b.input("d", {1, 3, 9, 9});
  b.output(b.op("one", "Conv", {twice, b.weights("w4", {8, 3, 3, 3})}, {{"pads", pads}}));
  b.output(b.op("two", "Conv", {twice, b.weights("w5", {8, 3, 3, 3})}, {{"pads", pads}}));
  auto graph = b.take();
  everything(*graph);
  testing::pass(passes::fuse_conv)(*graph);
  EXPECT_EQ(testing::pass(passes::read_planes)(*graph), 0);
}

TEST(FuseConv, LeavesValuesThatOthersReadAlone) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("w", {4, 3, 3, 3})});
  b.output(conv);
  b.output(b.op("y", "Relu", {conv}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "Relu"), 1);
}

TEST(FuseConv, ASumOfDifferentShapesStays) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("w", {4, 3, 3, 3})});
  b.output(b.op("y", "Add", {conv, b.op("mean", "GlobalAveragePool", {conv})}));
  ValueId other = b.op("other", "Conv", {x, b.weights("w2", {4, 3, 3, 3})});
  b.output(b.op("z", "Add", {other, b.input("s", {4, 1, 1})}));
  auto graph = b.take();
  same_results(*graph);
  EXPECT_EQ(count(*graph, "Add"), 2);
}

TEST(Pipeline, LayoutCanBeSkippedByName) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8});
  b.output(b.op("y", "Relu", {b.op("conv", "Conv", {x, b.weights("w", {4, 3, 3, 3})})}));
  auto graph = b.take();
  auto other = graph->clone();
  passes::PipelineOptions options;
  options.skip = {"assign-layout"};
  passes::optimize(*graph, options);
  EXPECT_EQ(count(*graph, "Conv"), 1);
  passes::optimize(*other, {.level = passes::Level::extended});
  EXPECT_EQ(count(*other, "Conv"), 1);
}

}  // namespace
}  // namespace treadle
