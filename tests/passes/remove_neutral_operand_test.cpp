#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::function<int64_t(Graph&)> remove() { return testing::pass(passes::remove_neutral_operand); }

TEST(RemoveNeutralOperand, OnesOfProductsAndZerosOfDifferencesGo) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2}), y = x;
  y = b.op("mul", "Mul", {y, b.scalar("one", 1)});
  y = b.op("lum", "Mul", {b.floats("ones", {1, 1}), y});
  y = b.op("div", "Div", {y, b.scalar("one2", 1)});
  y = b.op("sub", "Sub", {y, b.scalar("zero", 0)});
  y = b.op("add", "Add", {y, b.scalar("minus_zero", -0.0F)});
  y = b.op("pow", "Pow", {y, b.scalar("one3", 1)});
  b.output(b.op("y", "Relu", {y}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, remove(), 6), R"(graph g(%x f32[n,2]) {
  %y f32[n,2] = Relu(%x)
  return %y
}
)");
}

TEST(RemoveNeutralOperand, LeavesBroadcastsWrongSidesAndZerosThatChangeTheSign) {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  b.output(b.op("wide", "Mul", {x, b.constant<float>("ones", Shape{3, 1}, {1, 1, 1})}));
  b.output(b.op("reciprocal", "Div", {b.scalar("one", 1), x}));
  b.output(b.op("negative", "Sub", {b.scalar("zero", 0), x}));
  b.output(b.op("plus", "Add", {x, b.scalar("zero2", 0)}));  // -0 + 0 is 0
  b.output(b.op("two", "Mul", {x, b.floats("mixed", {1, 2})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, remove());
}

TEST(RemoveNeutralOperand, IntegersHaveOneZero) {
  GraphBuilder b;
  ValueId x = b.input("x", {3}, DType::int64);
  b.output(b.op("y", "Add", {b.ints("zero", {0}), x}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, remove(), 1), "graph g(%x i64[3]) {\n  return %x\n}\n");
}

TEST(RemoveNeutralOperand, LeavesVectorsWhereOnlyScalarsAreAskedFor) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 2});
  b.output(b.op("y", "Mul", {b.op("scaled", "Mul", {x, b.scalar("one", 1)}), b.floats("scale", {1, 1})}));
  auto graph = b.take();
  const auto scalars = testing::pass(passes::remove_neutral_operand, {.keep_patterns = true});
  EXPECT_EQ(testing::changed(*graph, scalars, 1), R"(graph g(%x f32[3,2]) {
  %scale = constant f32[2] {1,1}
  %y f32[3,2] = Mul(%x, %scale)
  return %y
}
)");
}

}  // namespace
}  // namespace treadle
