#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Perm = std::vector<int64_t>;

TEST(MergeTransposes, TwoBecomeOne) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2, 3});
  ValueId first = b.op("first", "Transpose", {x}, {{"perm", Perm{1, 2, 0}}});
  b.output(b.op("y", "Transpose", {first}));  // without `perm`, a Transpose reverses the axes
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2,3]) {
  %first f32[2,3,n] = Transpose(%x) {perm=[1,2,0]}
  %y f32[n,3,2] = Transpose(%first)
  return %y
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_transposes), 1), R"(graph g(%x f32[n,2,3]) {
  %y f32[n,3,2] = Transpose(%x) {perm=[0,2,1]}
  return %y
}
)");
}

TEST(MergeTransposes, TwoThatUndoEachOtherGo) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3, 4});
  ValueId first = b.op("first", "Transpose", {x}, {{"perm", Perm{1, 2, 0}}});
  b.output(b.op("y", "Transpose", {first}, {{"perm", Perm{2, 0, 1}}}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_transposes), 1), "graph g(%x f32[2,3,4]) {\n  return %x\n}\n");
}

TEST(MergeTransposes, LeavesASingleOne) {
  GraphBuilder b;
  b.output(b.op("y", "Transpose", {b.op("relu", "Relu", {b.input("x", {2, 3})})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::merge_transposes));
}

}  // namespace
}  // namespace treadle
