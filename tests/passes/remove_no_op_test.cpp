#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(RemoveNoOp, OperatorsThatGiveBackTheirInputGo) {
  GraphBuilder b;
  Dim n = b.symbol("n");
  ValueId x = b.input("x", {n, 1, 4}), y = x;
  y = b.op("reshape", "Reshape", {y, b.ints("same", {0, 1, 4})});
  y = b.op("cast", "Cast", {y}, {{"to", int64_t{1}}});
  y = b.op("slice", "Slice", {y, b.ints("starts", {0}), b.ints("ends", {INT64_MAX}), b.ints("axes", {2}), b.ints("steps", {1})});
  y = b.op("pad", "Pad", {y, b.ints("pads", {0, 0, 0, 0, 0, 0})});
  y = b.op("transpose", "Transpose", {y}, {{"perm", std::vector<int64_t>{0, 1, 2}}});
  y = b.op("expand", "Expand", {y, b.ints("small", {1, 4})});
  y = b.op("tile", "Tile", {y, b.ints("repeats", {1, 1, 1})});
  y = b.op("concat", "Concat", {y}, {{"axis", int64_t{0}}});
  b.output(b.op("y", "Relu", {y}));
  auto graph = b.take();
  EXPECT_EQ(graph->num_nodes(), 9U);
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::remove_no_op), 8), R"(graph g(%x f32[n,1,4]) {
  %y f32[n,1,4] = Relu(%x)
  return %y
}
)");
}

TEST(RemoveNoOp, ATransposeThatMovesOnlyAnAxisOfOneElementGoesWhereTheShapeStays) {
  GraphBuilder b;
  b.output(b.op("y", "Transpose", {b.input("x", {1, 1, 4})}, {{"perm", std::vector<int64_t>{1, 0, 2}}}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::remove_no_op), 1), "graph g(%x f32[1,1,4]) {\n  return %x\n}\n");
}

TEST(RemoveNoOp, LeavesWhatChangesSomething) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 4});
  b.output(b.op("transposed", "Transpose", {x}));  // the shape stays, but elements move
  b.output(b.op("reversed", "Slice", {x, b.ints("starts", {-1}), b.ints("ends", {INT64_MIN}), b.ints("axes", {0}), b.ints("steps", {-1})}));
  b.output(b.op("shifted", "Pad", {x, b.ints("pads", {1, 0, -1, 0})}));
  b.output(b.op("flat", "Reshape", {x, b.ints("shape", {16})}));
  b.output(b.op("cast", "Cast", {x}, {{"to", int64_t{11}}}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::remove_no_op));
}

}  // namespace
}  // namespace treadle
