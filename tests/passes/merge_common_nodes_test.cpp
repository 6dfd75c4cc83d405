#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::function<int64_t(Graph&)> merge_common() {
  return [](Graph& graph) { return testing::pass(passes::merge_constants)(graph) + testing::pass(passes::merge_common_nodes)(graph); };
}

TEST(MergeCommonNodes, EqualComputationsBecomeOneWithTheSourcesOfBoth) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2});
  ValueId a = b.op("a", "Mul", {x, b.scalar("two", 2)});
  ValueId c = b.op("c", "Mul", {x, b.scalar("also_two", 2)});
  b.output(b.op("d", "Neg", {a}));
  b.output(b.op("e", "Neg", {c}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2]) {
  %two = constant f32[] {2}
  %also_two = constant f32[] {2}
  %a f32[n,2] = Mul(%x, %two)
  %c f32[n,2] = Mul(%x, %also_two)
  %d f32[n,2] = Neg(%a)
  %e f32[n,2] = Neg(%c)
  return %d, %e
}
)");
  EXPECT_EQ(testing::changed(*graph, merge_common(), 3), R"(graph g(%x f32[n,2]) {
  %two = constant f32[] {2}
  %a f32[n,2] = Mul(%x, %two)
  %d f32[n,2] = Neg(%a)
  return %d, %d
}
)");
  EXPECT_EQ(graph->node(graph->first()).sources, (std::vector<std::string>{"a", "c"}));
}

TEST(MergeCommonNodes, LeavesOtherInputsAttributesTypesAndRandomNumbers) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 2}), y = b.input("y", {2, 2});
  b.output(b.op("sub", "Sub", {x, y}));
  b.output(b.op("bus", "Sub", {y, x}));
  b.output(b.op("first", "Concat", {x, y}, {{"axis", int64_t{0}}}));
  b.output(b.op("second", "Concat", {x, y}, {{"axis", int64_t{1}}}));
  b.output(b.op("random", "RandomNormalLike", {x}));
  b.output(b.op("random2", "RandomNormalLike", {x}));
  b.output(b.op("plus", "Add", {x, b.floats("f", {1, 2})}));
  b.output(b.op("cast", "Cast", {b.constant<int32_t>("i", Shape{2}, {1, 2})}, {{"to", int64_t{1}}}));
  b.output(b.op("cast2", "Cast", {b.ints("j", {1, 2})}, {{"to", int64_t{1}}}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, merge_common());
}

}  // namespace
}  // namespace treadle
