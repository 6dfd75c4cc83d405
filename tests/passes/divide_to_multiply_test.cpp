#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(DivideToMultiply, PowersOfTwoHaveExactReciprocals) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2});
  b.output(b.op("y", "Div", {x, b.floats("c", {8, -0.25F})}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::divide_to_multiply), 1), R"(graph g(%x f32[n,2]) {
  %y_node/factor = constant f32[2] {0.125,-4}
  %y f32[n,2] = Mul(%x, %y_node/factor)
  return %y
}
)");
}

TEST(DivideToMultiply, LeavesOtherDivisors) {
  GraphBuilder b;
  ValueId x = b.input("x", {2}), i = b.input("i", {2}, DType::int64);
  b.output(b.op("third", "Div", {x, b.scalar("three", 3)}));
  b.output(b.op("some", "Div", {x, b.floats("mixed", {2, 3})}));
  b.output(b.op("infinite", "Div", {x, b.scalar("zero", 0)}));
  b.output(b.op("tiny", "Div", {x, b.scalar("large", 0x1p127F)}));  // the reciprocal of the divisor is subnormal
  b.output(b.op("whole", "Div", {i, b.ints("two", {2})}));
  b.output(b.op("inverse", "Div", {b.scalar("two2", 2), x}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::divide_to_multiply));
}

}  // namespace
}  // namespace treadle
