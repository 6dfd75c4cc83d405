#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using passes::FoldLimits;
using testing::GraphBuilder;

std::function<int64_t(Graph&)> fold(FoldLimits limits = {}) {
  return [=](Graph& graph) mutable { return passes::fold_constants(graph, limits, INT64_MAX); };
}

TEST(FoldConstants, ChainsOfConstantsBecomeConstants) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 3});
  ValueId sum = b.op("sum", "Add", {b.floats("a", {1, 2, 3}), b.scalar("b", 10)});
  ValueId negative = b.op("negative", "Neg", {sum});
  b.output(b.op("y", "Mul", {x, negative}));
  b.output(sum);
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,3]) {
  %a = constant f32[3] {1,2,3}
  %b = constant f32[] {10}
  %sum f32[3] = Add(%a, %b)
  %negative f32[3] = Neg(%sum)
  %y f32[n,3] = Mul(%x, %negative)
  return %y, %sum
}
)");
  EXPECT_EQ(testing::changed(*graph, fold(), 2), R"(graph g(%x f32[n,3]) {
  %sum = constant f32[3] {11,12,13}
  %negative = constant f32[3] {-11,-12,-13}
  %y f32[n,3] = Mul(%x, %negative)
  return %y, %sum
}
)");
}

TEST(FoldConstants, ShapesThatOnlyTheElementsTellAreFoldedToo) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n")});
  ValueId where = b.op("where", "NonZero", {b.floats("a", {0, 2, 0, 4})});
  b.output(b.op("y", "Gather", {x, where}));
  auto graph = b.take();
  FoldLimits limits;
  EXPECT_EQ(passes::fold_constants(*graph, limits, INT64_MAX), 1);
  infer(*graph);
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n]) {
  %where = constant i64[1,2] {1,3}
  %y f32[1,2] = Gather(%x, %where)
  return %y
}
)");
}

TEST(FoldConstants, LeavesRandomNumbersParametersAndFailures) {
  GraphBuilder b;
  ValueId parameter = b.floats("parameter", {1, 2});
  b.graph().value(parameter).kind = Value::Kind::parameter;
  b.output(b.op("updated", "Neg", {parameter}));
  b.output(b.op("random", "RandomNormalLike", {b.floats("like", {1, 2})}));
  b.output(b.op("outside", "Gather", {b.floats("data", {1, 2}), b.ints("index", {5})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, fold());
}

TEST(FoldConstants, StaysWithinItsBudget) {
  GraphBuilder b;
  b.output(b.op("large", "ConstantOfShape", {b.ints("shape", {1 << 20})}));
  auto graph = b.take();
  FoldLimits small;
  small.max_bytes_each = (4U << 20U) - 1;
  testing::expect_unchanged(*graph, fold(small));
  FoldLimits slow;
  slow.operations = 1000;
  testing::expect_unchanged(*graph, fold(slow));
  FoldLimits enough;
  EXPECT_EQ(passes::fold_constants(*graph, enough, INT64_MAX), 1);
  EXPECT_EQ(enough.bytes, FoldLimits().bytes - (4U << 20U));
}

Tensor one_text(const std::string& text) { return Tensor::strings({1}, std::vector<std::string>{text}); }

TEST(FoldConstants, CountsStringsWithTheirTexts) {
  auto doubled = [](size_t length) {
    GraphBuilder b;
    const ValueId text = b.graph().add_constant("text", one_text(std::string(length, 'x')));
    b.output(b.op("y", "StringConcat", {text, text}));
    return b.take();
  };
  FoldLimits limits;
  limits.bytes = 1000;
  auto large = doubled(600);
  EXPECT_EQ(passes::fold_constants(*large, limits, INT64_MAX), 0);
  auto small = doubled(400);
  EXPECT_EQ(passes::fold_constants(*small, limits, INT64_MAX), 1);
  EXPECT_LE(limits.bytes, 200);
  auto next = doubled(200);
  EXPECT_EQ(passes::fold_constants(*next, limits, INT64_MAX), 0);
}

TEST(FoldConstants, WhatIsLetGoMayBeSpentAgain) {
  GraphBuilder b;
  ValueId y = b.op("large", "ConstantOfShape", {b.ints("shape", {1 << 10})});
  for (int i = 0; i < 20; ++i) y = b.op("y" + std::to_string(i), "Neg", {y});
  b.output(y);
  auto graph = b.take();
  FoldLimits limits;
  limits.bytes = 10'000;
  EXPECT_EQ(passes::fold_constants(*graph, limits, INT64_MAX), 21);
  EXPECT_EQ(limits.bytes, 10'000 - 4096);
}

// Each node that reads a large constant adds to the cost of the constant's copy, because kernels look through constants that they may pack.
TEST(FoldConstants, WhatManyReadCostsThemAll) {
  auto with = [](int readers) {
    GraphBuilder b;
    const ValueId x = b.input("x", {1000}), large = b.op("large", "ConstantOfShape", {b.ints("shape", {1000})});
    for (int i = 0; i < readers; ++i) b.output(b.op("y" + std::to_string(i), "Add", {x, large}));
    return b.take();
  };
  FoldLimits limits;
  limits.operations = 50'000;
  auto many = with(100);
  EXPECT_EQ(passes::fold_constants(*many, limits, INT64_MAX), 0);
  auto few = with(10);
  EXPECT_EQ(passes::fold_constants(*few, limits, INT64_MAX), 1);
}

TEST(FoldConstants, ASmallModelMaySpendLittle) {
  auto with = [](int64_t elements) {
    GraphBuilder b;
    b.output(b.op("y", "BitwiseNot", {b.graph().add_constant("x", Tensor(DType::uint8, {elements}))}));
    return FoldLimits::of(b.graph());
  };
  EXPECT_LE(with(100'000).bytes, 24e6);
  EXPECT_LE(with(100'000).operations, 1e8);
  EXPECT_EQ(with(200'000'000).bytes, FoldLimits().bytes);
}

TEST(FoldConstants, StopsAtTheLimit) {
  GraphBuilder b;
  ValueId y = b.scalar("x", 1);
  for (int i = 0; i < 5; ++i) y = b.op("y" + std::to_string(i), "Neg", {y});
  b.output(y);
  auto graph = b.take();
  FoldLimits limits;
  EXPECT_EQ(passes::fold_constants(*graph, limits, 2), 2);
  EXPECT_EQ(graph->num_nodes(), 3U);
}

TEST(FoldConstants, UnusedConstantsAreLetGo) {
  GraphBuilder b;
  ValueId a = b.floats("a", {1, 2, 3});
  b.output(b.op("y", "Neg", {a}));
  auto graph = b.take();
  FoldLimits limits;
  passes::fold_constants(*graph, limits, INT64_MAX);
  passes::release_unused_constants(*graph);
  EXPECT_FALSE(graph->value(a).constant.defined());
  EXPECT_TRUE(graph->value(graph->outputs[0]).constant.defined());
  verify(*graph);
}

}  // namespace
}  // namespace treadle
