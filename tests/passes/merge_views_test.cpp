#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(MergeViews, OneReshapeDoesForAChain) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2, 3});
  ValueId flat = b.op("flat", "Flatten", {x});
  ValueId wide = b.op("wide", "Unsqueeze", {flat, b.ints("axes", {1})});
  b.output(b.op("y", "Reshape", {wide, b.ints("shape", {0, 3, 2})}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2,3]) {
  %axes = constant i64[1] {1}
  %shape = constant i64[3] {0,3,2}
  %flat f32[n,6] = Flatten(%x)
  %wide f32[n,1,6] = Unsqueeze(%flat, %axes)
  %y f32[n,3,2] = Reshape(%wide, %shape)
  return %y
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_views), 2), R"(graph g(%x f32[n,2,3]) {
  %y_node/shape = constant i64[3] {0,3,2}
  %y f32[n,3,2] = Reshape(%x, %y_node/shape)
  return %y
}
)");
  EXPECT_EQ(graph->node(graph->first()).sources, (std::vector<std::string>{"flat", "wide", "y"}));
}

TEST(MergeViews, AChainThatComesBackToTheFirstShapeGoes) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), b.symbol("m")});
  ValueId wide = b.op("wide", "Unsqueeze", {x, b.ints("axes", {0, 3})});
  b.output(b.op("y", "Squeeze", {wide, b.ints("axes2", {0, 3})}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_views), 1), "graph g(%x f32[n,m]) {\n  return %x\n}\n");
}

TEST(MergeViews, LeavesShapesThatOneTargetCannotSay) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n") * b.symbol("m")});
  ValueId dims = b.input("dims", {b.symbol("n"), b.symbol("m")});
  ValueId shape = b.op("shape", "Shape", {dims});
  ValueId square = b.op("square", "Reshape", {x, shape});
  b.output(b.op("y", "Unsqueeze", {square, b.ints("axes", {0})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::merge_views));
}

}  // namespace
}  // namespace treadle
