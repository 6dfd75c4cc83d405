#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::function<int64_t(Graph&)> fold() {
  return [](Graph& graph) { return passes::fold_shapes(graph, INT64_MAX); };
}

TEST(FoldShapes, ExtentsThatAreIntegersBecomeConstants) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 4, 6});
  ValueId shape = b.op("shape", "Shape", {x});
  ValueId height = b.op("height", "Gather", {shape, b.ints("one", {1})});
  ValueId twice = b.op("twice", "Mul", {height, b.ints("two", {2})});
  ValueId target = b.op("target", "Concat", {b.ints("rest", {-1}), twice}, {{"axis", int64_t{0}}});
  b.output(b.op("y", "Reshape", {x, target}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,4,6]) {
  %one = constant i64[1] {1}
  %two = constant i64[1] {2}
  %rest = constant i64[1] {-1}
  %shape i64[3] = Shape(%x)
  %height i64[1] = Gather(%shape, %one)
  %twice i64[1] = Mul(%height, %two)
  %target i64[2] = Concat(%rest, %twice) {axis=0}
  %y f32[3*n,8] = Reshape(%x, %target)
  return %y
}
)");
  EXPECT_EQ(testing::changed(*graph, fold(), 3), R"(graph g(%x f32[n,4,6]) {
  %target = constant i64[2] {-1,8}
  %shape i64[3] = Shape(%x)
  %y f32[3*n,8] = Reshape(%x, %target)
  return %y
}
)");
}

TEST(FoldShapes, LeavesSymbols) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 4});
  b.output(b.op("shape", "Shape", {x}));
  b.output(b.op("size", "Size", {x}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, fold());
}

TEST(FoldShapes, LeavesChainsOfPartsWhereOnlyWholeShapesAreAskedFor) {
  GraphBuilder b;
  const ValueId part = b.op("part", "Gather", {b.op("shape", "Shape", {b.input("x", {b.symbol("n"), 4})}), b.ints("one", {1})});
  b.output(b.op("y", "Add", {b.op("whole", "Shape", {b.input("z", {2, 3})}), part}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(
                *graph, [](Graph& g) { return passes::fold_shapes(g, INT64_MAX, /*whole_shapes=*/true); }, 1),
            R"(graph g(%x f32[n,4], %z f32[2,3]) {
  %one = constant i64[1] {1}
  %whole = constant i64[2] {2,3}
  %shape i64[2] = Shape(%x)
  %part i64[1] = Gather(%shape, %one)
  %y i64[2] = Add(%whole, %part)
  return %y
}
)");
}

}  // namespace
}  // namespace treadle
