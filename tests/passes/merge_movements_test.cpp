#include "tests/kernels/random.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;
constexpr auto kPass = [](Graph& graph) { return testing::pass(passes::merge_movements)(graph); };

ValueId transpose(GraphBuilder& b, const std::string& name, ValueId x, Ints perm) { return b.op(name, "Transpose", {x}, {{"perm", perm}}); }
ValueId reshape(GraphBuilder& b, const std::string& name, ValueId x, Ints shape) {
  return b.op(name, "Reshape", {x, b.ints(name + "_shape", std::move(shape))});
}
int64_t count(const Graph& graph, std::string_view op) {
  int64_t n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(op) ? 1 : 0;
  return n;
}

// MobileViT cuts an image with channels last into patches of 2x2 pixels, and joins them again. Each pixel's channels stay together.
TEST(MergeMovements, ImagesAreCutIntoPatchesInOneMove) {
  GraphBuilder b;
  ValueId image = transpose(b, "first", b.input("x", {2, 6, 8, 5}), {0, 3, 1, 2});
  ValueId rows = transpose(b, "halves", reshape(b, "a", image, {30, 2, 4, 2}), {0, 2, 1, 3});
  ValueId patches = transpose(b, "patches", reshape(b, "b", rows, {2, 5, 12, 4}), {0, 3, 2, 1});
  ValueId tokens = b.op("tokens", "Exp", {reshape(b, "c", patches, {8, 12, 5})});
  ValueId back = transpose(b, "back", reshape(b, "d", tokens, {2, 4, 12, 5}), {0, 3, 2, 1});
  ValueId whole = transpose(b, "whole", reshape(b, "e", back, {30, 4, 2, 2}), {0, 2, 1, 3});
  b.output(transpose(b, "last", reshape(b, "f", whole, {2, 5, 6, 8}), {0, 2, 3, 1}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, kPass, 4);
  EXPECT_EQ(count(*graph, "Transpose"), 2) << text;
  EXPECT_NE(text.find("perm=[0,2,4,1,3,5]"), std::string::npos) << text;
  testing::expect_unchanged(*graph, kPass);
}

TEST(MergeMovements, WhatComesToNothingIsAView) {
  GraphBuilder b;
  ValueId x = transpose(b, "first", b.input("x", {4, 6}), {1, 0});
  b.output(transpose(b, "last", reshape(b, "cut", x, {6, 2, 2}), {1, 2, 0}));
  auto graph = b.take();
  testing::changed(*graph, kPass, 1);
  EXPECT_EQ(count(*graph, "Transpose"), 0);
}

// Runs random chains of reshapes and transposes of 48 elements. Results must be the same, whether the chains are merged or not.
TEST(MergeMovements, RandomChainsStayTheSame) {
  test::Random random(61);
  int64_t merged = 0;
  for (int round = 0; round < 300; ++round) {
    GraphBuilder b;
    auto shape = [&] {
      Ints dims;
      for (int64_t rest = 48; rest > 1 || dims.size() < 2;) {
        const int64_t factors[] = {1, 2, 3, 4, 6};
        const int64_t f = factors[random.integer(0, 4)];
        if (rest % f != 0 || dims.size() > 5) {
          dims.push_back(rest);
          rest = 1;
        } else {
          dims.push_back(f);
          rest /= f;
        }
      }
      return dims;
    };
    auto perm = [&](size_t rank) {
      Ints order(rank);
      for (size_t i = 0; i < rank; ++i) order[i] = static_cast<int64_t>(i);
      for (size_t i = rank; i-- > 1;) std::swap(order[i], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i)))]);
      return order;
    };
    Ints dims = shape();
    ValueId x = b.input("x", SymbolicShape(dims.begin(), dims.end()));
    for (int step = 0; step < 3; ++step) {
      x = transpose(b, "t" + std::to_string(step), x, perm(dims.size()));
      if (step == 2) break;
      dims = shape();
      x = reshape(b, "r" + std::to_string(step), x, dims);
    }
    b.output(x);
    auto graph = b.take();
    auto original = graph->clone();
    merged += kPass(*graph);
    verify(*graph);
    infer(*graph);
    const std::vector<Datum> feeds = testing::random_feeds(*original);
    ASSERT_EQ(testing::relative_difference(testing::run_graph(*graph, feeds)[0], testing::run_graph(*original, feeds)[0]), 0) << round;
  }
  EXPECT_GT(merged, 50);
}

TEST(MergeMovements, LeavesOthersAlone) {
  GraphBuilder b;
  // 8 is no multiple of 6, so the Reshape splits no axis evenly.
  b.output(transpose(b, "a2", reshape(b, "a1", transpose(b, "a0", b.input("a", {4, 6}), {1, 0}), {8, 3}), {1, 0}));
  // One extent is unknown.
  ValueId open = transpose(b, "b0", b.input("b", {b.symbol("n"), 6}), {1, 0});
  b.output(transpose(b, "b2", reshape(b, "b1", open, {2, 3, -1}), {2, 0, 1}));
  // The first Transpose has another reader.
  ValueId shared = transpose(b, "c0", b.input("c", {4, 6}), {1, 0});
  b.output(transpose(b, "c2", reshape(b, "c1", shared, {6, 2, 2}), {2, 0, 1}));
  b.output(shared);
  auto graph = b.take();
  testing::expect_unchanged(*graph, kPass);
}

}  // namespace
}  // namespace treadle
