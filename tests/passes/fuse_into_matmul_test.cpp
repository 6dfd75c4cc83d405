#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::string op_types(const Graph& graph) {
  std::string names;
  for (NodeId id : graph.order()) names += graph.node(id).op_type + " ";
  return names;
}

TEST(FuseIntoMatMul, TakesBiasResidualAndActivationInTheirOrder) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 5, 70}), r = b.input("r", {b.symbol("n"), 5, 33});
  ValueId product = b.op("product", "MatMul", {x, b.weights("w", Shape{70, 33})});
  ValueId sum = b.op("sum", "Add", {b.weights("bias", Shape{33}), product});
  b.output(b.op("y", "Gelu", {b.op("added", "Add", {r, sum})}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::fuse_into_matmul), 3), R"(graph g(%x f32[n,5,70], %r f32[n,5,33]) {
  %w = constant f32[70,33] {...}
  %bias = constant f32[33] {...}
  %y f32[n,5,33] = treadle.FusedMatMul(%x, %w, %bias, %r) {activation="Gelu"}
  return %y
}
)");
}

TEST(FuseIntoMatMul, TakesEveryActivationWithItsParameters) {
  struct Case {
    const char* op_type;
    Attributes attributes;
  };
  const Case cases[] = {{"Relu", {}}, {"LeakyRelu", {{"alpha", 0.3F}}}, {"Sigmoid", {}},  {"HardSigmoid", {{"alpha", 0.3F}}},
                        {"Tanh", {}}, {"Elu", {{"alpha", 0.7F}}},       {"Softplus", {}}, {"Gelu", {{"approximate", std::string("tanh")}}},
                        {"Mish", {}}, {"Swish", {{"alpha", 1.7F}}},     {"HardSwish", {}}};
  for (const Case& c : cases) {
    GraphBuilder b;
    ValueId product = b.op("product", "MatMul", {b.input("x", {7, 20}), b.weights("w", Shape{20, 65})});
    b.output(b.op("y", c.op_type, {product}, c.attributes));
    auto graph = b.take();
    testing::changed(*graph, testing::pass(passes::fuse_into_matmul), 1);
    EXPECT_EQ(op_types(*graph), "FusedMatMul ") << c.op_type;
  }
}

TEST(FuseIntoMatMul, TakesAGemmWithTransposedWeightsAndClip) {
  GraphBuilder b;
  ValueId product =
      b.op("product", "Gemm", {b.input("x", {4, 6}), b.weights("w", Shape{9, 6}), b.weights("c", Shape{9})}, {{"transB", int64_t{1}}});
  b.output(b.op("y", "Clip", {product, b.scalar("low", -0.5F), b.scalar("high", 0.25F)}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_into_matmul), 1);
  EXPECT_EQ(op_types(*graph), "FusedMatMul ");
}

TEST(FuseIntoMatMul, LeavesAnAddendThatStretchesTheProduct) {
  GraphBuilder b;
  ValueId product = b.op("product", "MatMul", {b.input("x", {1, 6}), b.weights("w", Shape{6, 9})});
  b.output(b.op("y", "Add", {product, b.input("r", {4, 9})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_into_matmul));
}

TEST(FuseIntoMatMul, LeavesAProductThatIsReadTwice) {
  GraphBuilder b;
  ValueId product = b.op("product", "MatMul", {b.input("x", {3, 6}), b.weights("w", Shape{6, 9})});
  b.output(b.op("y", "Relu", {product}));
  b.output(b.op("z", "Neg", {product}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_into_matmul));
}

TEST(FuseIntoMatMul, LeavesGemmThatScalesAndProductsOfTwoActivations) {
  GraphBuilder b;
  ValueId x = b.input("x", {6, 6});
  b.output(b.op("y", "Relu", {b.op("scaled", "Gemm", {x, b.weights("w", Shape{6, 9})}, {{"alpha", 0.5F}})}));
  b.output(b.op("z", "Relu", {b.op("square", "MatMul", {x, x})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_into_matmul));
}

}  // namespace
}  // namespace treadle
