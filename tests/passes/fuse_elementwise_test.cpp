#include "tests/passes/pass_test.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

int64_t fuse(Graph& graph) { return passes::fuse_elementwise(graph, INT64_MAX); }

TEST(FuseElementwise, AChainWithBroadcastsIsOneNode) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 3, 50}), z = b.input("z", {b.symbol("n"), 3, 50});
  ValueId shifted = b.op("shifted", "Add", {x, b.weights("row", Shape{50})});
  ValueId scaled = b.op("scaled", "Mul", {b.weights("column", Shape{3, 1}), shifted});
  ValueId gate = b.op("gate", "Sigmoid", {scaled});
  ValueId product = b.op("product", "Mul", {scaled, gate});
  b.output(b.op("y", "Sub", {z, product}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, fuse, 1), R"(graph g(%x f32[n,3,50], %z f32[n,3,50]) {
  %row = constant f32[50] {...}
  %column = constant f32[3,1] {-0.84738344,-0.5453218,0.5598376}
  %y f32[n,3,50] = treadle.FusedElementwise(%x, %row, %column, %z) {steps=["Add 0 1","Mul 2 4","Sigmoid 5","Mul 5 6","Sub 3 7"]}
  return %y
}
)");
}

TEST(FuseElementwise, EveryOperatorComputesWhatItComputesAlone) {
  const char* const unary[] = {"Relu", "LeakyRelu", "Elu",      "Sigmoid", "HardSigmoid", "HardSwish", "Swish",
                               "Tanh", "Softplus",  "Softsign", "Mish",    "Gelu",        "Exp",       "Erf",
                               "Abs",  "Neg",       "Floor",    "Ceil",    "Round",       "Sign",      "Reciprocal"};
  for (const char* op : unary) {
    GraphBuilder b;
    ValueId x = b.input("x", {3, 67});
    b.output(b.op("y", "Mul", {b.op("f", op, {b.op("scaled", "Mul", {x, b.scalar("three", 3)})}), x}));
    auto graph = b.take();
    testing::changed(*graph, fuse, 1);
    EXPECT_EQ(graph->num_nodes(), 1U) << op;
  }
  const char* const binary[] = {"Add", "Sub", "Mul", "Div", "Max", "Min"};
  for (const char* op : binary) {
    for (bool swapped : {false, true}) {
      GraphBuilder b;
      ValueId x = b.input("x", {3, 200}), z = b.input("z", {3, 200}), sum = b.op("sum", "Neg", {x});
      b.output(b.op("y", op, {swapped ? z : sum, swapped ? sum : z}));
      auto graph = b.take();
      testing::changed(*graph, fuse, 1);
      EXPECT_EQ(graph->num_nodes(), 1U) << op;
    }
  }
  const char* const comparisons[] = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"};
  for (const char* op : comparisons) {
    GraphBuilder b;
    ValueId x = b.input("x", {130}), z = b.input("z", {130});
    ValueId test = b.op("test", op, {b.op("floor", "Floor", {x}), b.op("floor2", "Floor", {z})});
    ValueId other = b.op("other", "Or", {b.op("not", "Not", {test}), b.op("and", "And", {test, b.op("nan", "IsNaN", {x})})});
    b.output(b.op("y", "Where", {other, b.op("a", "Add", {x, z}), b.op("s", "Sub", {x, z})}));
    auto graph = b.take();
    testing::changed(*graph, fuse, 1);
    EXPECT_EQ(graph->num_nodes(), 1U) << op;
  }
}

TEST(FuseElementwise, QuantizationAndItsInverse) {
  for (DType dtype : {DType::uint8, DType::int8}) {
    GraphBuilder b;
    ValueId x = b.input("x", {5, 77}), scale = b.scalar("scale", 0.01F);
    ValueId zero = dtype == DType::uint8 ? b.constant<uint8_t>("zero", Shape{}, {100}) : b.constant<int8_t>("zero", Shape{}, {-3});
    ValueId q = b.op("q", "QuantizeLinear", {b.op("doubled", "Add", {x, x}), scale, zero});
    ValueId d = b.op("d", "DequantizeLinear", {q, scale, zero});
    b.output(b.op("y", "QuantizeLinear", {b.op("r", "Relu", {d}), scale, zero}));
    auto graph = b.take();
    testing::changed(*graph, fuse, 1);
    EXPECT_EQ(graph->num_nodes(), 1U);
  }
}

TEST(FuseElementwise, LeavesWhatOthersReadOtherShapesAndOtherTypes) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 5}), row = b.input("row", {5}), i = b.input("i", {4, 5}, DType::int64);
  ValueId read = b.op("read", "Neg", {x});
  b.output(read);
  b.output(b.op("y", "Abs", {read}));
  b.output(b.op("z", "Add", {x, b.op("exp", "Exp", {row})}));  // Exp would be computed again for every row
  b.output(b.op("w", "Neg", {b.op("abs", "Abs", {i})}));
  b.output(b.op("v", "Abs", {b.op("power", "Pow", {x, b.scalar("half", 0.5F)})}));  // pow(-inf, 0.5) is inf, but a square root is NaN
  auto graph = b.take();
  testing::expect_unchanged(*graph, fuse);
}

// A result with several readers is computed again by each, if it is cheap and reads only values that are kept anyway.
TEST(FuseElementwise, AResultOfAKeptImageIsComputedByEachReader) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 50}), dy = b.input("dy", {4, 50});
  ValueId scaled = b.op("scaled", "Mul", {x, b.weights("row", Shape{50})});
  ValueId y = b.op("y", "Relu", {b.op("shifted", "Add", {scaled, b.scalar("one", 1)})});
  b.output(b.op("product", "MatMul", {y, b.weights("w", Shape{50, 3})}));
  ValueId passes = b.op("passes", "Greater", {y, b.scalar("zero", 0)});
  ValueId dx = b.op("dx", "Where", {passes, dy, b.scalar("none", 0)});
  b.output(b.op("dproduct", "MatMul", {b.op("turned", "Transpose", {dx}), x}));  // this node keeps x alive until after the gradient
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, fuse, 2), R"(graph g(%x f32[4,50], %dy f32[4,50]) {
  %row = constant f32[50] {...}
  %one = constant f32[] {1}
  %w = constant f32[50,3] {...}
  %zero = constant f32[] {0}
  %none = constant f32[] {0}
  %y f32[4,50] = treadle.FusedElementwise(%x, %row, %one) {steps=["Mul 0 1","Add 3 2","Relu 4"]}
  %product f32[4,3] = MatMul(%y, %w)
  %dx f32[4,50] = treadle.FusedElementwise(%x, %row, %one, %zero, %dy, %none) {steps=["Mul 0 1","Add 6 2","Relu 7","Greater 8 3","Where 9 4 5"]}
  %turned f32[50,4] = Transpose(%dx)
  %dproduct f32[50,50] = MatMul(%turned, %x)
  return %product, %dproduct
}
)");
}

TEST(FuseElementwise, AResultOfTwoImagesOrOfOneThatIsOverIsReadAgain) {
  for (bool of_two : {false, true}) {
    GraphBuilder b;
    ValueId x = b.input("x", {4, 50}), z = b.input("z", {4, 50}), dy = b.input("dy", {4, 50});
    ValueId y = b.op("y", "Relu", {b.op("sum", "Add", {x, of_two ? z : b.scalar("one", 1)})});
    b.output(b.op("product", "MatMul", {y, b.weights("w", Shape{50, 3})}));
    ValueId dx = b.op("dx", "Where", {b.op("passes", "Greater", {y, b.scalar("zero", 0)}), dy, b.scalar("none", 0)});
    b.output(of_two ? b.op("dproduct", "MatMul", {b.op("turned", "Transpose", {dx}), x}) : dx);
    auto graph = b.take();
    const std::string text = testing::changed(*graph, fuse, 2);
    EXPECT_NE(text.find("%dx f32[4,50] = treadle.FusedElementwise(%y, %zero, %dy, %none)"), std::string::npos) << text;
  }
}

TEST(FuseElementwise, AChainLongerThanTheInterpreterIsSeveral) {
  GraphBuilder b;
  ValueId x = b.input("x", {300});
  for (int i = 0; i < 200; ++i) x = b.op("v" + std::to_string(i), i % 2 ? "Neg" : "Abs", {x});
  b.output(x);
  auto graph = b.take();
  testing::changed(*graph, fuse, 3);
  EXPECT_EQ(graph->num_nodes(), 3U);
}

TEST(FuseElementwise, AGroupOfManyInputsIsCut) {
  GraphBuilder b;
  ValueId x = b.input("x", {300});
  for (int i = 0; i < 40; ++i) x = b.op("v" + std::to_string(i), "Add", {x, b.input("i" + std::to_string(i), {300})});
  b.output(x);
  auto graph = b.take();
  testing::changed(*graph, fuse, 3);
  EXPECT_EQ(graph->num_nodes(), 4U);  // the last Add is not fused
}

}  // namespace
}  // namespace treadle
