#include "passes/layout.h"
#include "passes/precision.h"
#include "tests/passes/pass_test.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using ops::Precision;
using passes::PrecisionRules;
using testing::GraphBuilder;

std::function<int64_t(Graph&)> assign(const char* text) {
  return [text](Graph& graph) { return passes::assign_precision(graph, PrecisionRules::parse(text), INT64_MAX); };
}

TEST(AssignPrecision, ProductsByConstantWeightsBecomeFusedOnesOfThePrecision) {
  GraphBuilder b;
  ValueId product = b.op("product", "MatMul", {b.input("x", {b.symbol("n"), 5, 70}), b.weights("w", Shape{70, 33})});
  b.output(b.op("y", "Gemm",
                {b.op("flat", "Reshape", {product, b.ints("shape", {-1, 33})}), b.weights("v", Shape{9, 33}), b.weights("c", Shape{9})},
                {{"transB", int64_t{1}}}));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, assign("bfloat16"), 2, 0.02), R"(graph g(%x f32[n,5,70]) {
  %w = constant f32[70,33] {...}
  %shape = constant i64[2] {-1,33}
  %v = constant f32[9,33] {...}
  %c = constant f32[9] {...}
  %product f32[n,5,33] = treadle.FusedMatMul(%x, %w) {precision="bfloat16"}
  %flat f32[5*n,33] = Reshape(%product, %shape)
  %y f32[5*n,9] = treadle.FusedMatMul(%flat, %v, %c) {transB=1, precision="bfloat16"}
  return %y
}
)");
}

// ONNX has an attribute with the same name, which says in which dtype the division takes place.
TEST(AssignPrecision, QuantizeLinearKeepsItsOwnPrecision) {
  GraphBuilder b;
  const ValueId scale = b.scalar("scale", 0.1F), zero = b.constant<uint8_t>("zero", Shape{}, {128});
  const ValueId x = b.input("x", {6, 7});
  const ValueId given = b.op("given", "QuantizeLinear", {x, scale, zero}, {{"precision", int64_t{1}}});
  b.output(b.op("y", "DequantizeLinear", {given, scale, zero}));
  b.output(b.op("z", "QuantizeLinear", {x, scale, zero}));
  auto graph = b.take();
  const std::string before = print(*graph);
  EXPECT_EQ(testing::changed(*graph, assign("bfloat16"), 0), before);
  EXPECT_EQ(ops::precision_of(graph->node(graph->value(given).producer)), "");
}

TEST(AssignPrecision, WhereWeightsChangeComputedProductsGetItToo) {
  for (bool weights_change : {false, true}) {
    GraphBuilder b;
    const ValueId x = b.input("x", {6, 70}), w = b.input("w", {70, 33});
    b.output(b.op("y", "Gemm", {b.op("product", "MatMul", {x, w}), w}, {{"transB", int64_t{1}}}));
    auto graph = b.take();
    const std::string text = testing::changed(
        *graph,
        [&](Graph& g) { return passes::assign_precision(g, PrecisionRules::parse("bfloat16;y=bfloat16x3"), INT64_MAX, weights_change); },
        weights_change ? 2 : 0, 0.03);
    EXPECT_EQ(text.find("treadle.RoundedMatMul(%x, %w)") != std::string::npos, weights_change) << text;
    EXPECT_EQ(text.find("treadle.RoundedGemm(%product, %w) {transB=1, precision=\"bfloat16x3\"}") != std::string::npos, weights_change)
        << text;
  }
}

TEST(AssignPrecision, WeightsThatWereBytesAreKeptInBytes) {
  GraphBuilder b;
  std::vector<float> w(5000);
  for (int64_t i = 0; i < 5000; ++i) w[static_cast<size_t>(i)] = 0.0123F * static_cast<float>(i * 37 % 255 - 127);
  b.output(b.op("y", "MatMul",
                {b.op("z", "MatMul", {b.input("x", {5, 100}), b.constant("w", Shape{100, 50}, w)}), b.weights("v", Shape{50, 100})}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, assign("float32"), 1, 1e-5);
  EXPECT_NE(text.find("treadle.FusedMatMul(%x, %w) {precision=\"int8_weights\"}"), std::string::npos) << text;
}

TEST(AssignPrecision, ThreeProductsAreNearlyAsExactAsFloat32) {
  GraphBuilder b;
  b.output(b.op("y", "MatMul", {b.input("x", {5, 700}), b.weights("w", Shape{700, 33})}));
  auto graph = b.take();
  testing::changed(*graph, assign("bfloat16x3"), 1, 3e-5);
}

TEST(AssignPrecision, ConvolutionsWithChannelsInnermostKeepTheirEpilogue) {
  GraphBuilder b;
  ValueId conv = b.op("conv", "Conv", {b.input("x", {2, 16, 9, 11}), b.weights("w", Shape{24, 16, 1, 1}), b.weights("bias", Shape{24})});
  b.output(b.op("y", "Relu", {conv}));
  auto graph = b.take();
  passes::assign_layout(*graph, INT64_MAX);
  testing::pass(passes::fuse_conv)(*graph);
  infer(*graph);
  EXPECT_NE(testing::changed(*graph, assign("bfloat16"), 1, 0.02).find("precision=\"bfloat16\""), std::string::npos);
}

TEST(AssignPrecision, ProductsOfFusedAttentionAreComputedInThePrecision) {
  for (const auto& [precision, tolerance] : {std::pair{"bfloat16", 0.02}, std::pair{"bfloat16x3", 3e-5}}) {
    for (int64_t queries : {3, 37}) {
      GraphBuilder b;
      ValueId q = b.input("q", {2, 4, queries, 24}), k = b.input("k", {2, 2, 41, 24}), v = b.input("v", {2, 2, 41, 19});
      b.output(b.node("y", "FusedAttention", {q, k, v}, {{"scale", 0.2F}}, 1, "treadle")[0]);
      auto graph = b.take();
      testing::changed(*graph, assign(precision), 1, tolerance);
    }
  }
}

TEST(AssignPrecision, TheLastPatternThatMatchesANodeOrWhatItStandsForCounts) {
  const auto rules = PrecisionRules::parse("bfloat16;/head/*=float32;;*out*=bfloat16x3");
  Node node;
  node.name = "/body/MatMul";
  EXPECT_EQ(rules.of(node), Precision::bfloat16);
  node.sources = {"/head/MatMul"};
  EXPECT_EQ(rules.of(node), Precision::float32);
  node.sources.push_back("/head/out/Add");
  EXPECT_EQ(rules.of(node), Precision::bfloat16x3);
  EXPECT_FALSE(rules.empty());
  EXPECT_TRUE(PrecisionRules::parse("").empty());
  EXPECT_TRUE(PrecisionRules::parse("float32;x=float32").empty());
}

TEST(AssignPrecision, LeavesWhatIsToStayAndWhatItCannotTake) {
  GraphBuilder b;
  ValueId x = b.input("x", {6, 8}), w = b.weights("w", Shape{8, 9});
  b.output(b.op("kept", "MatMul", {x, w}));
  b.output(b.op("scaled", "Gemm", {x, w}, {{"alpha", 2.0F}}));
  b.output(b.op("computed", "MatMul", {x, b.input("v", {8, 3})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, assign("bfloat16;kept*=float32"));
}

TEST(AssignPrecision, SaysWhatIsWrongWithARule) {
  for (const char* text : {"half", "bfloat16;x=fp8", "=bfloat16", "a=b="}) {
    try {
      PrecisionRules::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("float32, bfloat16, bfloat16x3"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace treadle
