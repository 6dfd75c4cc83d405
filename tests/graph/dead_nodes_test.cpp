#include "graph/dead_nodes.h"

#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::function<int64_t(Graph&)> removal() {
  return [](Graph& graph) { return remove_dead_nodes(graph); };
}

TEST(RemoveDead, ChainsThatNothingReadsGo) {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  b.op("dead2", "Abs", {b.op("dead1", "Neg", {x})});
  b.output(b.op("y", "Relu", {x}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[2]) {
  %dead1 f32[2] = Neg(%x)
  %dead2 f32[2] = Abs(%dead1)
  %y f32[2] = Relu(%x)
  return %y
}
)");
  EXPECT_EQ(testing::changed(*graph, removal(), 2), R"(graph g(%x f32[2]) {
  %y f32[2] = Relu(%x)
  return %y
}
)");
}

TEST(RemoveDead, LeavesANodeOfWhichOneOutputIsRead) {
  GraphBuilder b;
  std::vector<ValueId> parts = b.node("part", "Split", {b.input("x", {4})}, {{"num_outputs", int64_t{2}}}, 2);
  b.output(parts[1]);
  auto graph = b.take();
  testing::expect_unchanged(*graph, removal());
}

}  // namespace
}  // namespace treadle
