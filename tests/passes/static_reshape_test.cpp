#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

// Exporters write x.view(x.size(0), x.size(1), 4, 16) in this form: the extents are read, gathered and joined.
TEST(StaticReshape, AComputedShapeBecomesAConstant) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), b.symbol("seq"), 64});
  ValueId shape = b.op("shape", "Shape", {x});
  ValueId batch = b.op("batch", "Gather", {shape, b.ints("first", {0})});
  ValueId seq = b.op("seq", "Gather", {shape, b.ints("second", {1})});
  ValueId target = b.op("target", "Concat", {batch, seq, b.ints("heads", {4}), b.ints("width", {16})}, {{"axis", int64_t{0}}});
  b.output(b.op("y", "Reshape", {x, target}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[batch,seq,64]) {
  %first = constant i64[1] {0}
  %second = constant i64[1] {1}
  %heads = constant i64[1] {4}
  %width = constant i64[1] {16}
  %shape i64[3] = Shape(%x)
  %batch i64[1] = Gather(%shape, %first)
  %seq i64[1] = Gather(%shape, %second)
  %target i64[4] = Concat(%batch, %seq, %heads, %width) {axis=0}
  %y f32[batch,seq,4,16] = Reshape(%x, %target)
  return %y
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::static_reshape), 1), R"(graph g(%x f32[batch,seq,64]) {
  %y_node/shape = constant i64[4] {0,0,4,16}
  %y f32[batch,seq,4,16] = Reshape(%x, %y_node/shape)
  return %y
}
)");
  EXPECT_EQ(graph->node(graph->first()).sources, (std::vector<std::string>{"shape", "batch", "seq", "target", "y"}));
}

TEST(StaticReshape, OneNewExtentIsLeftToInference) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), b.symbol("seq"), 64});
  ValueId shape = b.op("shape", "Shape", {x}, {{"end", int64_t{2}}});
  ValueId rows = b.op("rows", "ReduceProd", {shape}, {{"keepdims", int64_t{1}}});
  ValueId target = b.op("target", "Concat", {rows, b.ints("width", {64})}, {{"axis", int64_t{0}}});
  b.output(b.op("y", "Reshape", {x, target}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::static_reshape), 1), R"(graph g(%x f32[batch,seq,64]) {
  %y_node/shape = constant i64[2] {-1,64}
  %y f32[batch*seq,64] = Reshape(%x, %y_node/shape)
  return %y
}
)");
}

TEST(StaticReshape, LeavesAShapeThatIsFedOrOfTwoNewExtents) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n") * b.symbol("m")}), other = b.input("other", {b.symbol("n"), b.symbol("m")});
  ValueId fed = b.input("fed", {2}, DType::int64);
  b.output(b.op("y", "Reshape", {x, b.op("shape", "Shape", {other})}));
  b.output(b.op("z", "Reshape", {x, fed}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::static_reshape));
}

}  // namespace
}  // namespace treadle
