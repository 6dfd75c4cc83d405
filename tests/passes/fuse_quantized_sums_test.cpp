#include <algorithm>

#include "kernels/gemm/gemm_bytes.h"
#include "tests/passes/quantized_graph.h"

namespace treadle {
namespace {

using testing::count;
using testing::GraphBuilder;
using testing::largest_step;
using Builder = testing::QuantizedGraphBuilder;
using Ints = std::vector<int64_t>;

class FuseQuantizedSums : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::has_fast_byte_products()) GTEST_SKIP() << "the pass leaves graphs alone on this machine";
  }
};

std::vector<float> row(int count, float step) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 17 - 8) * step);
  return values;
}

/// Two layers of a transformer's feed-forward part, with a residual, and zero points that are not 0.
struct FeedForward {
  Builder b;
  ValueId matmul(const std::string& name, ValueId x, int64_t rows, int64_t columns) {
    const Tensor random = GraphBuilder::random_tensor(Shape{rows, columns}, static_cast<uint32_t>(columns));
    std::vector<int8_t> values;
    for (float w : random.span<float>()) values.push_back(static_cast<int8_t>(std::lround(w * 127)));
    std::vector<float> scales;
    for (int64_t i = 0; i < columns; ++i) scales.push_back(0.004F + 0.0001F * static_cast<float>(i % 7));
    ValueId w = b.op(name + "_wd", "DequantizeLinear",
                     {b.constant<int8_t>(name + "_w", {rows, columns}, values), b.floats(name + "_ws", scales),
                      b.constant<int8_t>(name + "_wz", {columns}, std::vector<int8_t>(static_cast<size_t>(columns), 0))},
                     {{"axis", int64_t{1}}});
    return b.op(name, "MatMul", {x, w});
  }
  ValueId again(const std::string& name, ValueId x, float scale, uint8_t zero) {
    return b.dequantize(name + "d", b.quantize(name + "q", x, scale, zero), scale, zero);
  }
  std::unique_ptr<Graph> make(Dim tokens, bool is_signed) {
    b.is_signed = is_signed;
    ValueId x = again("x_", b.input("x", {2, tokens, 37}), 0.02F, 120);
    ValueId up = again("up_", matmul("up", x, 37, 70), 0.03F, 131);
    ValueId sum = again("sum_", b.op("sum", "Add", {b.floats("bias", row(70, 0.05F)), up}), 0.025F, 90);
    ValueId act = again("act_", b.op("act", "Sigmoid", {sum}), 0.004F, 3);
    ValueId down = again("down_", matmul("down", act, 70, 37), 0.03F, 140);
    ValueId shifted = again("shifted_", b.op("shifted", "Add", {down, b.floats("bias2", row(37, 0.04F))}), 0.03F, 128);
    b.output(b.quantize("y", b.op("residual", "Add", {x, shifted}), 0.04F, 110));
    return b.take();
  }
};

TEST_F(FuseQuantizedSums, AFeedForwardPartIsTwoProducts) {
  for (const bool is_signed : {false, true}) {
    FeedForward parts;
    auto graph = parts.make(parts.b.symbol("tokens"), is_signed);
    // Each of the three quantizations behind a product may round a middle the other way.
    EXPECT_LE(largest_step(*graph, {GraphBuilder::random_tensor({2, 9, 37}, 5)}), 3);
    EXPECT_EQ(count(*graph, "QuantizedMatMul", "treadle"), 2);
    EXPECT_EQ(graph->order().size(), 3U) << print(*graph);
  }
}

TEST_F(FuseQuantizedSums, WithoutThePassOrBelowItsLevelCodesAreExact) {
  for (const bool skips : {true, false}) {
    FeedForward parts;
    auto graph = parts.make(Dim(5), false);
    passes::PipelineOptions options;
    if (skips)
      options.skip = {"fuse-quantized-sums", "fuse-quantized-matmul"};
    else
      options.level = passes::Level::basic;
    EXPECT_EQ(largest_step(*graph, {GraphBuilder::random_tensor({2, 5, 37}, 5)}, options), 0);
  }
}

TEST_F(FuseQuantizedSums, ProductsOfTwoActivationsAreBytes) {
  Builder b;
  ValueId q = b.dequantize("qd", b.quantize("qq", b.input("q", {2, 3, 9, 30}), 0.01F, 99), 0.01F, 99);
  ValueId k = b.dequantize("kd", b.quantize("kq", b.input("k", {2, 1, 30, 65}), 0.012F, 120), 0.012F, 120);
  ValueId v = b.dequantize("vd", b.quantize("vq", b.input("v", {2, 3, 65, 20}), 0.01F, 131), 0.01F, 131);
  ValueId scores = b.dequantize("sd", b.quantize("sq", b.op("scores", "MatMul", {q, k}), 0.02F, 128), 0.02F, 128);
  ValueId weights = b.dequantize("wd", b.quantize("wq", b.op("softmax", "Softmax", {scores}), 1.0F / 255, 0), 1.0F / 255, 0);
  b.output(b.quantize("y", b.op("context", "MatMul", {weights, v}), 0.004F, 128));
  auto graph = b.take();
  const std::vector<Datum> feeds{GraphBuilder::random_tensor({2, 3, 9, 30}, 1), GraphBuilder::random_tensor({2, 1, 30, 65}, 2),
                                 GraphBuilder::random_tensor({2, 3, 65, 20}, 3)};
  EXPECT_LE(largest_step(*graph, feeds), 2);
  EXPECT_EQ(count(*graph, "QuantizedMatMul", "treadle"), 2);
  EXPECT_EQ(count(*graph, "QuantizedSoftmax", "treadle"), 1);
  EXPECT_EQ(graph->order().size(), 6U) << print(*graph);
}

TEST_F(FuseQuantizedSums, RowsAreExact) {
  for (const bool is_signed : {false, true}) {
    Builder b;
    b.is_signed = is_signed;
    ValueId x = b.input("x", {b.symbol("n"), 5, 33}, is_signed ? DType::int8 : DType::uint8);
    ValueId normal =
        b.op("normal", "LayerNormalization", {b.dequantize("d", x, 0.05F, 97), b.floats("g", row(33, 0.2F)), b.floats("h", row(33, 0.1F))});
    ValueId again = b.dequantize("nd", b.quantize("nq", normal, 0.02F, 128), 0.02F, 128);
    b.output(b.quantize("y", b.op("softmax", "Softmax", {again}, {{"axis", int64_t{2}}}), 0.004F, 3));
    b.output(b.quantize("z", b.op("across", "Softmax", {again}, {{"axis", int64_t{1}}}), 0.004F, 3));  // not along rows
    auto graph = b.take();
    Tensor feed(is_signed ? DType::int8 : DType::uint8, {300, 5, 33});
    for (int64_t i = 0; i < feed.num_elements(); ++i) feed.raw()[i] = static_cast<std::byte>(i * i % 251);
    EXPECT_EQ(largest_step(*graph, {feed}), 0);
    EXPECT_EQ(count(*graph, "QuantizedSoftmax", "treadle"), 1);
    EXPECT_EQ(count(*graph, "QuantizedLayerNormalization", "treadle"), 1);
    EXPECT_EQ(count(*graph, "Softmax"), 1) << print(*graph);
  }
}

TEST_F(FuseQuantizedSums, LeavesOthersAlone) {
  Builder b;
  ValueId x = b.input("x", {4, 16}, DType::uint8), y = b.input("y", {4, 8});
  ValueId xd = b.dequantize("xd", x, 0.01F, 9);
  auto product = [&](const std::string& name) {
    ValueId w = b.constant<int8_t>(name + "_w", {16, 8}, std::vector<int8_t>(128, 3));
    return b.op(name, "MatMul", {xd, b.op(name + "_wd", "DequantizeLinear", {w, b.scalar(name + "_ws", 0.02F)})});
  };
  ValueId read_twice = product("read_twice");
  b.output(read_twice);
  b.output(b.quantize("q1", read_twice, 0.1F, 9));
  b.output(b.quantize("q2", b.op("computed", "Add", {product("p2"), y}), 0.1F, 9));  // no constant
  b.output(b.quantize("q3", b.op("relu", "Relu", {product("p3")}), 0.1F, 9));        // codes go below the zero point
  b.output(b.quantize("q4", b.op("infinite", "Add", {product("p4"), b.scalar("inf", INFINITY)}), 0.1F, 9));
  auto graph = b.take();
  testing::pass(passes::fuse_quantized_matmul)(*graph);
  EXPECT_EQ(count(*graph, "QuantizedMatMul", "treadle"), 4);
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_sums));
}

}  // namespace
}  // namespace treadle
