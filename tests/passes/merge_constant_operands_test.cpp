#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(MergeConstantOperands, IntegersAndPowersOfTwoMerge) {
  GraphBuilder b;
  ValueId i = b.input("i", {3}, DType::int64), x = b.input("x", {3});
  b.output(b.op("sum", "Add", {b.op("plus", "Add", {b.ints("two", {2}), i}), b.ints("three", {3})}));
  b.output(b.op("product", "Mul", {b.op("times", "Mul", {x, b.scalar("four", 4)}), b.scalar("half_k", 512)}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_constant_operands), 2), R"(graph g(%i i64[3], %x f32[3]) {
  %sum_node/constant = constant i64[1] {5}
  %product_node/constant = constant f32[] {2048}
  %sum i64[3] = Add(%i, %sum_node/constant)
  %product f32[3] = Mul(%x, %product_node/constant)
  return %sum, %product
}
)");
}

TEST(MergeConstantOperands, LeavesWhatRoundsTwice) {
  GraphBuilder b;
  ValueId x = b.input("x", {3});
  b.output(b.op("sum", "Add", {b.op("plus", "Add", {x, b.scalar("a", 0.1F)}), b.scalar("b", 0.2F)}));
  b.output(b.op("product", "Mul", {b.op("times", "Mul", {x, b.scalar("c", 3)}), b.scalar("d", 5)}));
  // Products that are subnormal are rounded.
  b.output(b.op("small", "Mul", {b.op("halved", "Mul", {x, b.scalar("e", 0.5F)}), b.scalar("f", 0.5F)}));
  ValueId shared = b.op("shared", "Mul", {x, b.scalar("g", 2)});
  b.output(shared);
  b.output(b.op("twice", "Mul", {shared, b.scalar("h", 2)}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::merge_constant_operands));
}

}  // namespace
}  // namespace treadle
