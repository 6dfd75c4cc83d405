#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout.h"
#include "passes/pipeline.h"
#include "tests/passes/quantized_graph.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

class FuseQuantizedConv : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::has_fast_byte_products()) GTEST_SKIP() << "the pass leaves graphs alone on this machine";
  }
};

using testing::count;
using testing::largest_step;
using Builder = testing::QuantizedGraphBuilder;

TEST_F(FuseQuantizedConv, BytesStayBytesFromConvolutionToConvolution) {
  Builder b;
  ValueId x = b.input("x", {2, 3, 12, 10});
  ValueId in = b.dequantize("in", b.quantize("xq", x, 0.01F, 120), 0.01F, 120);
  ValueId first = b.op("first", "Conv",
                       {in, b.dequantized_weights("w1", {8, 3, 3, 3}, std::vector<float>(8, 0.004F)), b.bias("bias", 8, 0.01F * 0.004F)},
                       {{"pads", Ints{1, 1, 1, 1}}});
  ValueId act = b.dequantize("actd", b.quantize("actq", b.op("act", "Relu", {first}), 0.02F, 0), 0.02F, 0);
  ValueId deep = b.op("deep", "Conv", {act, b.dequantized_weights("w2", {8, 1, 3, 3}, {.01F, .02F, .01F, .03F, .02F, .01F, .01F, .02F})},
                      {{"group", int64_t{8}}});
  ValueId deepd = b.dequantize("deepd", b.quantize("deepq", deep, 0.03F, 77), 0.03F, 77);
  ValueId pooled = b.op("pooled", "MaxPool", {b.op("relu", "Relu", {deepd})}, {{"kernel_shape", Ints{2, 2}}});
  ValueId pooledd = b.dequantize("pooledd", b.quantize("pooledq", pooled, 0.025F, 3), 0.025F, 3);
  ValueId last = b.op("last", "Conv", {pooledd, b.dequantized_weights("w3", {5, 8, 1, 1}, std::vector<float>(5, 0.01F))});
  b.output(b.quantize("y", last, 0.05F, 128));
  auto graph = b.take();
  // Float sums may round a value half-way between two codes either way, so each layer may add a difference of one step.
  EXPECT_LE(largest_step(*graph, {GraphBuilder::random_tensor({2, 3, 12, 10}, 5)}), 2);
  EXPECT_EQ(count(*graph, "NhwcQLinearConv", "treadle"), 3);
  EXPECT_EQ(count(*graph, "NhwcByteMaxPool", "treadle"), 1);
  EXPECT_EQ(count(*graph, "ByteTable", "treadle"), 0) << "a part of the convolution before it";
  EXPECT_EQ(count(*graph, "DequantizeLinear"), 0);
}

TEST_F(FuseQuantizedConv, ABiasBetweenTwoSumsStaysWithTheFloats) {
  Builder b;
  ValueId x = b.dequantize("in", b.quantize("xq", b.input("x", {1, 3, 6, 6}), 0.01F, 120), 0.01F, 120);
  ValueId y = b.op("y", "Conv", {x, b.dequantized_weights("w", {2, 3, 3, 3}, {0.004F}), b.floats("bias", {4e-5F, 6e-5F})});
  b.output(b.quantize("yq", y, 0.02F, 0));
  auto graph = b.take();
  passes::optimize(*graph, {.verify = true});
  EXPECT_EQ(count(*graph, "NhwcQLinearConv", "treadle"), 0);
}

// These passes begin with QLinearConv and do not change any rounding, so all bits stay the same.
TEST_F(FuseQuantizedConv, JoinsAndTablesChangeNothing) {
  Builder b;
  ValueId x = b.input("x", {1, 4, 9, 9}, DType::uint8);
  auto conv = [&](const std::string& name, int64_t filters, float scale, uint8_t zero) {
    const Tensor random = GraphBuilder::random_tensor(Shape{filters, 4, 3, 3}, static_cast<uint32_t>(filters));
    std::vector<int8_t> values;
    for (float w : random.span<float>()) values.push_back(static_cast<int8_t>(std::lround(w * 127)));
    ValueId y = b.op(name, "QLinearConv",
                     {x, b.scalar(name + "_xs", 0.02F), b.byte(name + "_x", 100),
                      b.constant<int8_t>(name + "_w", {filters, 4, 3, 3}, values), b.scalar(name + "_ws", 0.01F),
                      b.constant<int8_t>(name + "_wz", Shape{}, {0}), b.scalar(name + "_ys", scale), b.byte(name + "_y", zero)});
    return b.op(name + "_relu", "Relu", {b.dequantize(name + "_d", y, scale, zero)});
  };
  ValueId joined = b.op("joined", "Concat", {conv("a", 6, 0.1F, 100), conv("b", 20, 0.08F, 140)}, {{"axis", int64_t{1}}});
  ValueId pooled = b.op("pooled", "MaxPool", {joined}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  b.output(b.quantize("y", pooled, 0.06F, 10));
  auto graph = b.take();
  Tensor feed(DType::uint8, {1, 4, 9, 9});
  for (int64_t i = 0; i < feed.num_elements(); ++i) feed.data<uint8_t>()[i] = static_cast<uint8_t>(i * 37 % 256);
  EXPECT_EQ(largest_step(*graph, {feed}), 0);
  EXPECT_EQ(count(*graph, "NhwcQLinearConv", "treadle"), 2);
  EXPECT_EQ(count(*graph, "ByteTable", "treadle") + count(*graph, "DequantizeLinear") + count(*graph, "FusedElementwise", "treadle"), 0);
}

TEST_F(FuseQuantizedConv, QuantizingAgainByTheSameScaleGoes) {
  Builder b;
  ValueId x = b.input("x", {3, 4}, DType::uint8);
  ValueId back = b.op("back", "Transpose", {b.dequantize("d", x, 0.5F, 9)}, {{"perm", Ints{1, 0}}});
  b.output(b.quantize("y", back, 0.5F, 9));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::fuse_quantized_conv), 2), R"(graph g(%x u8[3,4]) {
  %y u8[4,3] = Transpose(%x) {perm=[1,0]}
  return %y
}
)");
}

TEST_F(FuseQuantizedConv, LeavesOthersAlone) {
  Builder b;
  ValueId x = b.input("x", {1, 4, 6, 6}), s = b.input("s", {});
  ValueId xq = b.quantize("xq", x, 0.01F, 120), xd = b.dequantize("xd", xq, 0.01F, 120);
  ValueId conv = b.op("conv", "Conv", {xd, b.dequantized_weights("w", {2, 4, 1, 1}, {0.1F, 0.2F})});
  b.output(conv);  // another node reads the convolution without quantisation
  b.output(b.quantize("y", conv, 0.1F, 0));
  // The pass does not apply to a Relu that the codes' range does not express, to float weights, or to a scale that a node computes.
  ValueId other = b.op("other", "Conv", {xd, b.dequantized_weights("w2", {2, 4, 1, 1}, {0.1F, 0.2F})});
  b.output(b.quantize("z", b.op("relu", "Relu", {other}), 0.1F, 5));
  b.output(b.quantize("real", b.op("third", "Conv", {xd, b.weights("w3", {2, 4, 1, 1})}), 0.1F, 5));
  ValueId groups =  // of two channels
      b.op("groups", "Conv", {xd, b.dequantized_weights("w4", {4, 2, 1, 1}, {0.1F, 0.2F, 0.1F, 0.2F})}, {{"group", int64_t{2}}});
  b.output(b.quantize("g", groups, 0.1F, 5));
  b.output(b.op("again", "QuantizeLinear", {xd, s, b.byte("again", 3)}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_conv));
}

// x * Sigmoid(x), and a Gelu of several nodes, each quantised on its way: all depend on one byte.
TEST_F(FuseQuantizedConv, PointwiseNodesOverOneByteAreATable) {
  for (const bool is_signed : {false, true}) {
    Builder b;
    b.is_signed = is_signed;
    ValueId x = b.input("x", {b.symbol("n"), 5, 16}, is_signed ? DType::int8 : DType::uint8);
    ValueId real = b.dequantize("d", x, 0.05F, 97);
    ValueId gate = b.dequantize("gated", b.quantize("gateq", b.op("gate", "Sigmoid", {real}), 1.0F / 255, 0), 1.0F / 255, 0);
    ValueId silu = b.quantize("siluq", b.op("silu", "Mul", {real, gate}), 0.03F, 20);
    ValueId siluf = b.dequantize("silud", silu, 0.03F, 20);
    ValueId scaled = b.op("scaled", "Div", {siluf, b.scalar("root", 1.4142135F)});
    ValueId erf = b.dequantize("erfd", b.quantize("erfq", b.op("erf", "Erf", {scaled}), 0.01F, 100), 0.01F, 100);
    ValueId one = b.dequantize("oned", b.quantize("oneq", b.op("one", "Add", {erf, b.scalar("1", 1)}), 0.01F, 0), 0.01F, 0);
    ValueId twice = b.dequantize("twiced", b.quantize("twiceq", b.op("twice", "Mul", {siluf, one}), 0.06F, 15), 0.06F, 15);
    b.output(b.quantize("y", b.op("half", "Mul", {twice, b.scalar("0.5", 0.5F)}), 0.03F, 15));
    auto graph = b.take();
    Tensor feed(is_signed ? DType::int8 : DType::uint8, {7, 5, 16});
    for (int64_t i = 0; i < feed.num_elements(); ++i) feed.raw()[i] = static_cast<std::byte>(i);
    EXPECT_EQ(largest_step(*graph, {feed}), 0);
    EXPECT_EQ(count(*graph, "ByteTable", "treadle"), 1);
    EXPECT_EQ(graph->order().size(), 1U) << print(*graph);
  }
}

TEST_F(FuseQuantizedConv, TablesNeedOneByteAndNumbers) {
  Builder b;
  ValueId x = b.input("x", {2, 8}, DType::uint8), other = b.input("other", {2, 8}, DType::uint8);
  ValueId a = b.dequantize("a", x, 0.05F, 97), c = b.dequantize("c", other, 0.05F, 97), row = b.floats("row", {1, 2, 3, 4, 5, 6, 7, 8});
  b.output(b.quantize("two", b.op("sum", "Add", {a, c}), 0.1F, 90));
  b.output(b.quantize("each", b.op("product", "Mul", {a, row}), 0.1F, 90));
  b.output(b.quantize("wide", b.op("stretched", "Add", {a, b.constant<float>("deep", {1, 1, 1}, {2})}), 0.1F, 90));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_conv));
}

TEST_F(FuseQuantizedConv, PartsOfBytesAreBytes) {
  Builder b;
  ValueId x = b.input("x", {3, b.symbol("n"), 8}, DType::uint8);
  std::vector<ValueId> parts = b.node("split", "Split", {b.dequantize("d", x, 0.05F, 97)}, {{"num_outputs", int64_t{3}}}, 3);
  for (size_t i = 0; i < 3; ++i) b.output(b.quantize("q" + std::to_string(i), parts[i], i == 2 ? 0.05F : 0.04F, 97));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_conv));

  Builder same;
  x = same.input("x", {3, same.symbol("n"), 8}, DType::uint8);
  parts = same.node("split", "Split", {same.dequantize("d", x, 0.05F, 97)}, {{"num_outputs", int64_t{3}}}, 3);
  for (size_t i = 0; i < 3; ++i) same.output(same.quantize("q" + std::to_string(i), parts[i], 0.04F, 97));
  graph = same.take();
  Tensor feed(DType::uint8, {3, 2, 8});
  for (int64_t i = 0; i < feed.num_elements(); ++i) feed.data<uint8_t>()[i] = static_cast<uint8_t>(5 * i);
  EXPECT_EQ(largest_step(*graph, {feed}), 0);
  EXPECT_EQ(graph->order().size(), 2U) << print(*graph);
}

TEST_F(FuseQuantizedConv, GroupsOfFewChannelsAndTheSumBehindThem) {
  if (!kernels::has_byte_instructions(kernels::ByteInstructions::avx512_vnni)) GTEST_SKIP() << "groups are for AVX512-VNNI";
  Builder b;
  ValueId in = b.dequantize("in", b.quantize("xq", b.input("x", {2, 24, 9, 11}), 0.01F, 120), 0.01F, 120);
  ValueId conv = b.op("conv", "Conv", {in, b.dequantized_weights("w", {24, 8, 3, 3}, std::vector<float>(24, 0.01F))},
                      {{"group", int64_t{3}}, {"pads", Ints{1, 1, 1, 1}}});
  ValueId y = b.dequantize("yd", b.quantize("yq", conv, 0.03F, 77), 0.03F, 77);
  ValueId other = b.op("other", "Conv", {in, b.dequantized_weights("w1", {24, 24, 1, 1}, std::vector<float>(24, 0.01F))});
  ValueId shortcut = b.dequantize("otherd", b.quantize("otherq", other, 0.03F, 90), 0.03F, 90);
  ValueId sum = b.dequantize("sumd", b.quantize("sumq", b.op("relu", "Relu", {b.op("sum", "Add", {y, shortcut})}), 0.02F, 0), 0.02F, 0);
  ValueId deep = b.op("deep", "Conv", {sum, b.dequantized_weights("w2", {24, 1, 3, 3}, std::vector<float>(24, 0.002F))},
                      {{"group", int64_t{24}}, {"strides", Ints{2, 2}}});
  ValueId deepq = b.quantize("deepq", deep, 0.01F, 130);
  b.output(deepq);
  auto graph = b.take();
  EXPECT_LE(largest_step(*graph, {GraphBuilder::random_tensor({2, 24, 9, 11}, 5)}), 3);
  EXPECT_EQ(count(*graph, "NhwcQLinearConv", "treadle"), 3);
  EXPECT_EQ(count(*graph, "DequantizeLinear") + count(*graph, "FusedElementwise", "treadle"), 0) << print(*graph);
}

TEST_F(FuseQuantizedConv, TransposedConvolutionsAreProductsOfBytes) {
  Builder b;
  ValueId in = b.dequantize("in", b.quantize("xq", b.input("x", {b.symbol("n"), 6, 5, 7}), 0.01F, 120), 0.01F, 120);
  ValueId first = b.dequantize(
      "fd",
      b.quantize("fq", b.op("first", "Conv", {in, b.dequantized_weights("w", {6, 6, 3, 3}, std::vector<float>(6, 0.01F))}), 0.03F, 77),
      0.03F, 77);
  const Tensor random = GraphBuilder::random_tensor({6, 5, 2, 3}, 3);
  std::vector<int8_t> codes;
  for (float w : random.span<float>()) codes.push_back(static_cast<int8_t>(std::lround(w * 127)));
  ValueId w = b.op("wd", "DequantizeLinear",
                   {b.constant<int8_t>("wq", {6, 5, 2, 3}, codes), b.floats("ws", {.01F, .02F, .01F, .03F, .02F})}, {{"axis", int64_t{1}}});
  ValueId bias = b.op("bd", "DequantizeLinear",
                      {b.constant<int32_t>("bq", {5}, {100, -300, 5000, 0, 77}), b.floats("bs", {3e-4F, 6e-4F, 3e-4F, 9e-4F, 6e-4F})},
                      {{"axis", int64_t{0}}});
  ValueId up = b.op("up", "ConvTranspose", {first, w, bias}, {{"strides", Ints{2, 3}}});
  ValueId last = b.op("last", "Conv",
                      {b.dequantize("upd", b.quantize("upq", up, 0.05F, 130), 0.05F, 130),
                       b.dequantized_weights("w3", {4, 5, 1, 1}, std::vector<float>(4, 0.01F))});
  b.output(b.quantize("y", last, 0.05F, 128));
  auto graph = b.take();
  EXPECT_LE(largest_step(*graph, {GraphBuilder::random_tensor({3, 6, 5, 7}, 5)}), 3);
  EXPECT_EQ(count(*graph, "QuantizedMatMul", "treadle"), 1);
  EXPECT_EQ(count(*graph, "DequantizeLinear") + count(*graph, "ConvTranspose") + count(*graph, "NhwcConvTranspose", "treadle"), 0)
      << print(*graph);
}

}  // namespace
}  // namespace treadle
