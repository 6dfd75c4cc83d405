#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

ValueId mean_of(GraphBuilder& b, std::string name, ValueId x, int64_t axis = -1) {
  return b.op(name, "ReduceMean", {x, b.ints(name + "_axes", {axis})});
}
ValueId root_of(GraphBuilder& b, ValueId square, int64_t axis = -1) {
  return b.op("root", "Sqrt", {b.op("shifted", "Add", {mean_of(b, "variance", square, axis), b.scalar("epsilon", 1e-5F)})});
}

TEST(FuseNormalization, LayerNormWithScaleAndBias) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 5, 40});
  ValueId centered = b.op("centred", "Sub", {x, mean_of(b, "mean", x)});
  ValueId ratio = b.op("ratio", "Div", {centered, root_of(b, b.op("square", "Pow", {centered, b.scalar("two", 2)}), 2)});
  ValueId scaled = b.op("scaled", "Mul", {ratio, b.weights("scale", Shape{40})});
  b.output(b.op("y", "Add", {scaled, b.weights("bias", Shape{40})}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::fuse_normalization), 1, 2e-6), R"(graph g(%x f32[n,5,40]) {
  %scale = constant f32[40] {...}
  %bias = constant f32[40] {...}
  %y f32[n,5,40] = LayerNormalization(%x, %scale, %bias) {axis=-1, epsilon=1e-05}
  return %y
}
)");
}

TEST(FuseNormalization, LayerNormWithoutScaleByReciprocal) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 40});
  ValueId centered = b.op("centred", "Sub", {x, mean_of(b, "mean", x)});
  ValueId reciprocal = b.op("reciprocal", "Reciprocal", {root_of(b, b.op("square", "Mul", {centered, centered}))});
  b.output(b.op("y", "Mul", {centered, reciprocal}));
  auto graph = b.take();
  std::string text = testing::changed(*graph, testing::pass(passes::fuse_normalization), 1, 2e-6);
  EXPECT_NE(text.find("LayerNormalization(%x, "), std::string::npos) << text;
}

TEST(FuseNormalization, RmsNormAsLlamaWritesIt) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  ValueId reciprocal = b.op("reciprocal", "Div", {b.scalar("one", 1), root_of(b, b.op("square", "Pow", {x, b.scalar("two", 2)}))});
  b.output(b.op("y", "Mul", {b.weights("scale", Shape{40}), b.op("n", "Mul", {x, reciprocal})}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::fuse_normalization), 1, 2e-6), R"(graph g(%x f32[n,40]) {
  %scale = constant f32[40] {...}
  %y f32[n,40] = RMSNormalization(%x, %scale) {axis=-1, epsilon=1e-05}
  return %y
}
)");
}

TEST(FuseNormalization, LeavesOtherAxesAndADifferentMean) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 4}), z = b.input("z", {4, 4});
  ValueId over_rows = b.op("over_rows", "ReduceMean", {b.op("square", "Mul", {x, x}), b.ints("axes", {0})});
  b.output(b.op("y", "Div", {x, b.op("root", "Sqrt", {b.op("shifted", "Add", {over_rows, b.scalar("epsilon", 1e-5F)})})}));
  ValueId other = b.op("other", "ReduceMean", {b.op("square2", "Mul", {z, z}), b.ints("axes2", {-1})});
  b.output(b.op("w", "Div", {x, b.op("root2", "Sqrt", {b.op("shifted2", "Add", {other, b.scalar("epsilon2", 1e-5F)})})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_normalization));
}

}  // namespace
}  // namespace treadle
