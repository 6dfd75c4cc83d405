#include <cmath>

#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

const Ints kAround{0, 0, 1, 2, 0, 0, 3, 1};  // pads at the top, left, bottom and right of an image

struct Case {
  std::string op = "Conv";
  Ints pads = kAround;
  float number = 0;
  bool has_number = true, is_positive = false;
  std::string mode = "constant";
  Attributes attributes;
};

std::unique_ptr<Graph> graph_of(const Case& c) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 3, b.symbol("h"), 9});
  if (c.is_positive) x = b.op("positive", "Relu", {x});
  std::vector<ValueId> operands{x, b.ints("amounts", c.pads)};
  if (c.has_number) operands.push_back(b.scalar("number", c.number));
  const ValueId padded = b.op("padded", "Pad", operands, {{"mode", c.mode}});
  Attributes attributes = c.attributes;
  if (c.op != "Conv" && !attributes.has("kernel_shape")) attributes.set("kernel_shape", Ints{4, 4});
  std::vector<ValueId> inputs{padded};
  if (c.op == "Conv") inputs.push_back(b.weights("w", {4, 3, 3, 3}));
  b.output(b.op("y", c.op, inputs, attributes));
  return b.take();
}

// Applies the pass, and compares the results. @return the pads of the pool or convolution afterwards
Ints absorbed(const Case& c) {
  auto graph = graph_of(c);
  testing::changed(*graph, testing::pass(passes::absorb_pad), 1, 1e-6);
  for (NodeId id : graph->order()) {
    EXPECT_FALSE(graph->node(id).is("Pad"));
    if (graph->node(id).is(c.op)) return graph->node(id).attributes.get_ints("pads");
  }
  return {};
}
void stays(const Case& c) {
  auto graph = graph_of(c);
  testing::expect_unchanged(*graph, testing::pass(passes::absorb_pad));
}

TEST(AbsorbPad, ZerosInFrontOfAConvolutionAreAddedToItsOwn) {
  EXPECT_EQ(absorbed({}), (Ints{1, 2, 3, 1}));
  EXPECT_EQ(absorbed({.has_number = false}), (Ints{1, 2, 3, 1}));
  EXPECT_EQ(absorbed({.attributes = {{"pads", Ints{1, 0, 0, 2}}, {"strides", Ints{2, 2}}}}), (Ints{2, 2, 3, 3}));
  EXPECT_EQ(absorbed({.attributes = {{"auto_pad", std::string("VALID")}}}), (Ints{1, 2, 3, 1}));
}

TEST(AbsorbPad, AMeanThatCountsZeros) {
  EXPECT_EQ(absorbed({.op = "AveragePool"}), (Ints{1, 2, 3, 1}));
  EXPECT_EQ(absorbed({.op = "AveragePool", .attributes = {{"pads", Ints{1, 1, 0, 0}}, {"count_include_pad", int64_t{1}}}}),
            (Ints{2, 3, 3, 1}));
  stays({.op = "AveragePool", .attributes = {{"pads", Ints{1, 1, 0, 0}}}});
  stays({.op = "AveragePool", .attributes = {{"ceil_mode", int64_t{1}}}});
  stays({.op = "AveragePool", .attributes = {{"kernel_shape", Ints{3, 3}}}});  // a window of 3 x 3 may contain only zeros of the Pad
}

TEST(AbsorbPad, AMaximumOfWhatIsNeverLess) {
  EXPECT_EQ(absorbed({.op = "MaxPool", .number = -INFINITY}), (Ints{1, 2, 3, 1}));
  EXPECT_EQ(absorbed({.op = "MaxPool", .pads = {0, 0, 1, 2, 0, 0, 2, 1}, .is_positive = true}), (Ints{1, 2, 2, 1}));
  EXPECT_EQ(absorbed({.op = "MaxPool", .number = -INFINITY, .attributes = {{"dilations", Ints{2, 1}}}}), (Ints{1, 2, 3, 1}));
  stays({.op = "MaxPool"});
  stays({.op = "MaxPool", .number = -1e30F});
}

// If a window contains only padding of the Pad, the maximum is the Pad's 0. If it contained only padding of the pool itself, there would be
// no maximum.
TEST(AbsorbPad, LeavesAMaximumWhoseWindowMayHoldPadsAlone) {
  stays({.op = "MaxPool", .is_positive = true});  // the image has no rows
  stays({.op = "MaxPool", .pads = {0, 0, 1, 2, 0, 0, 2, 1}, .is_positive = true, .attributes = {{"dilations", Ints{2, 1}}}});
}

TEST(AbsorbPad, LeavesOtherPaddingAlone) {
  stays({.number = 1});
  stays({.number = -0.0F});
  stays({.number = NAN});
  stays({.has_number = false, .mode = "reflect"});
  stays({.has_number = false, .mode = "edge"});
  stays({.pads = {0, 0, -1, 0, 0, 0, 1, 0}});
  stays({.attributes = {{"auto_pad", std::string("SAME_UPPER")}}});
  stays({.op = "LpPool"});
}

TEST(AbsorbPad, LeavesPadsOfBatchAndChannelsAlone) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 2, 8, 8}), padded = b.op("padded", "Pad", {x, b.ints("amounts", {0, 0, 1, 1, 0, 1, 1, 1})});
  b.output(b.op("y", "Conv", {padded, b.weights("w", {4, 3, 3, 3})}));
  testing::expect_unchanged(*b.take(), testing::pass(passes::absorb_pad));
}

TEST(AbsorbPad, AxesMayBeNamed) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 3, 8, 8});
  const ValueId padded = b.op("padded", "Pad", {x, b.ints("amounts", {1, 2}), kNoValue, b.ints("axes", {-2})});
  b.output(b.op("y", "Conv", {padded, b.weights("w", {4, 3, 3, 3})}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::absorb_pad), 1, 1e-6);
  EXPECT_EQ(graph->num_nodes(), 1U);
}

TEST(AbsorbPad, AllReadersTakeThePadsOrNone) {
  for (bool all : {true, false}) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 3, 8, 8}), padded = b.op("padded", "Pad", {x, b.ints("amounts", {0, 0, 1, 1, 0, 0, 1, 1})});
    b.output(b.op("y", "Conv", {padded, b.weights("w", {4, 3, 3, 3})}));
    b.output(b.op("z", all ? "AveragePool" : "LpPool", {padded}, {{"kernel_shape", Ints{2, 2}}}));
    auto graph = b.take();
    if (all)
      testing::changed(*graph, testing::pass(passes::absorb_pad), 2, 1e-6);
    else
      testing::expect_unchanged(*graph, testing::pass(passes::absorb_pad));
  }
}

}  // namespace
}  // namespace treadle
