#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

constexpr int64_t kRows = 7, kChannels = 5;

/// The gradient of a batch normalisation, which reads the result that `gate` computes from dy and the normalised image.
struct Built {
  std::unique_ptr<Graph> graph;
  explicit Built(const std::function<ValueId(GraphBuilder& b, ValueId y, ValueId dy)>& gate, bool is_read_twice = false) {
    GraphBuilder b;
    const SymbolicShape image{2, kRows, kRows, kChannels};
    ValueId x = b.input("x", image), dy = b.input("dy", image);
    ValueId mean = b.weights("mean", Shape{kChannels}), factor = b.floats("factor", {1, -2, 3, 0.5F, 1}),
            bias = b.weights("bias", {kChannels});
    ValueId inverse = b.floats("inverse", {1, 2, 1.5F, 0.5F, 1}), scale = b.floats("scale", {1, -1, 2, 1, 1});
    ValueId y = b.op("y", "Add", {b.op("scaled", "Mul", {b.op("centred", "Sub", {x, mean}), factor}), bias});
    ValueId passed = gate(b, y, dy);
    const std::vector<ValueId> gradients =
        b.node("gradient", "NhwcBatchNormalizationGrad", {x, scale, mean, inverse, passed}, {}, 3, "treadle");
    for (ValueId gradient : gradients) b.output(gradient);
    if (is_read_twice) b.output(b.op("again", "Neg", {passed}));
    graph = b.take();
  }
};

int64_t fuse(Graph& graph) {
  passes::fuse_elementwise(graph, INT64_MAX);
  return testing::pass(passes::fuse_chain_into_reader)(graph);
}

ValueId relu_gate(GraphBuilder& b, ValueId y, ValueId dy) {
  return b.op("passed", "Where", {b.op("above", "Greater", {b.op("r", "Relu", {y}), b.scalar("zero", 0)}), dy, b.scalar("none", 0)});
}
ValueId clip_gate(GraphBuilder& b, ValueId y, ValueId dy) {
  ValueId below = b.op("below", "Less", {y, b.scalar("low", 0)}), above = b.op("above", "Greater", {y, b.scalar("high", 1)});
  return b.op("passed", "Where", {b.op("outside", "Or", {below, above}), b.scalar("none", 0), dy});
}
ValueId sigmoid_gate(GraphBuilder& b, ValueId y, ValueId dy) { return b.op("passed", "Mul", {dy, b.op("s", "Sigmoid", {y})}); }
// Adds nodes that differ from the gradient of a Relu only by a number.
ValueId other_gate(GraphBuilder& b, ValueId y, ValueId dy) {
  return b.op("passed", "Where", {b.op("above", "Greater", {b.op("r", "Relu", {y}), b.scalar("half", 0.5F)}), dy, b.scalar("none", 0)});
}
ValueId other_filling(GraphBuilder& b, ValueId y, ValueId dy) {
  return b.op("passed", "Where", {b.op("above", "Greater", {b.op("r", "Relu", {y}), b.scalar("zero", 0)}), dy, b.scalar("some", 0.25F)});
}

TEST(FuseChainIntoReader, AGradientIsComputedOnItsWayIn) {
  for (auto gate : {relu_gate, clip_gate, sigmoid_gate, other_gate, other_filling}) {
    auto graph = Built(gate).graph;
    testing::changed(*graph, fuse, 1, 2e-6);  // the fused kernel sums blocks in float
    EXPECT_EQ(graph->num_nodes(), 1U);
  }
}

TEST(FuseChainIntoReader, WhatOthersReadStays) {
  auto graph = Built(sigmoid_gate, /*is_read_twice=*/true).graph;
  EXPECT_EQ(fuse(*graph), 0);
}

TEST(FuseChainIntoReader, ANodeWithoutThatInputStays) {
  GraphBuilder b;
  const SymbolicShape image{2, kRows, kRows, kChannels}, channels{kChannels};
  const std::vector<ValueId> inputs{b.input("x", image), b.input("scale", channels), b.input("mean", channels),
                                    b.input("inverse", channels)};
  for (ValueId gradient : b.node("gradient", "NhwcBatchNormalizationGrad", inputs, {}, 3, "treadle")) b.output(gradient);
  EXPECT_EQ(testing::pass(passes::fuse_chain_into_reader)(*b.take()), 0);
}

}  // namespace
}  // namespace treadle
