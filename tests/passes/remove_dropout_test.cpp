#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(RemoveDropout, GivesItsInputAndATrueMask) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2});
  std::vector<ValueId> dropped = b.node("d", "Dropout", {x, b.scalar("ratio", 0.5F)}, {}, 2);
  b.output(b.op("y", "Relu", {dropped[0]}));
  b.output(dropped[1], "mask");
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2]) {
  %ratio = constant f32[] {0.5}
  %d f32[n,2], %d1 bool[n,2] = Dropout(%x, %ratio)
  %y f32[n,2] = Relu(%d)
  return %y, %d1
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::remove_dropout), 1), R"(graph g(%x f32[n,2]) {
  %Shape_out i64[2] = Shape(%x)
  %d1 bool[n,2] = ConstantOfShape(%Shape_out) {value=bool[1]}
  %y f32[n,2] = Relu(%x)
  return %y, %d1
}
)");
}

TEST(RemoveDropout, StaysWhereTheRunSaysWhetherItTrains) {
  GraphBuilder b;
  ValueId x = b.input("x", {2}), mode = b.input("training", {}, DType::boolean);
  b.output(b.op("y", "Dropout", {x, b.scalar("ratio", 0.5F), mode}));
  b.output(b.op("z", "Dropout", {x, b.scalar("ratio2", 0.5F), b.graph().add_constant("on", Tensor::scalar<bool>(true))}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::remove_dropout));
}

}  // namespace
}  // namespace treadle
