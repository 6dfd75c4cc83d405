#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout.h"
#include "passes/pipeline.h"
#include "tests/passes/pass_test.h"

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

int count(const Graph& graph, std::string_view type, std::string_view domain = "") {
  int n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(type, domain) ? 1 : 0;
  return n;
}

/// A graph builder that adds quantised nodes with constant scales and zero points.
class Builder : public GraphBuilder {
 public:
  ValueId quantize(std::string_view name, ValueId x, float scale, uint8_t zero) {
    return op(name, "QuantizeLinear", {x, this->scalar(std::string(name) + "_s", scale), byte(name, zero)});
  }
  ValueId dequantize(std::string_view name, ValueId x, float scale, uint8_t zero) {
    return op(name, "DequantizeLinear", {x, this->scalar(std::string(name) + "_s", scale), byte(name, zero)});
  }
  ValueId byte(std::string_view name, uint8_t zero) { return constant<uint8_t>(std::string(name) + "_z", Shape{}, {zero}); }
  /// Makes a bias whose elements are multiples of the unit of the integer sums.
  ValueId bias(std::string_view name, int count, float unit) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i * 911 - 3000) * unit);
    return floats(std::string(name), values);
  }
  ValueId dequantized_weights(std::string_view name, const Shape& shape, const std::vector<float>& scales) {
    const Tensor random = random_tensor(shape, 3);
    std::vector<int8_t> values;
    for (float x : random.span<float>()) values.push_back(static_cast<int8_t>(std::lround(x * 127)));
    const std::string stem(name);
    return op(name, "DequantizeLinear",
              {constant<int8_t>(stem + "_q", shape, values), floats(stem + "_s", scales),
               constant<int8_t>(stem + "_z", Shape{shape[0]}, std::vector<int8_t>(static_cast<size_t>(shape[0]), 0))},
              {{"axis", int64_t{0}}});
  }
};

/// Returns the largest difference between codes of the first output before and after the whole pipeline. Before, the graph computes in
/// float.
int largest_step(Graph& graph, const Datum& feed) {
  const auto before = testing::run_graph(graph, {feed});
  passes::PipelineOptions options;
  options.verify = true;
  passes::optimize(graph, options);
  const auto after = testing::run_graph(graph, {feed});
  const Tensor &x = before[0].tensor(), &y = after[0].tensor();
  EXPECT_EQ(x.dtype(), y.dtype());
  EXPECT_EQ(x.shape(), y.shape());
  int largest = 0;
  for (int64_t i = 0; i < x.num_elements(); ++i)
    largest = std::max(largest, std::abs(int{x.data<uint8_t>()[i]} - int{y.data<uint8_t>()[i]}));
  return largest;
}

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
  EXPECT_LE(largest_step(*graph, GraphBuilder::random_tensor({2, 3, 12, 10}, 5)), 2);
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
  EXPECT_EQ(largest_step(*graph, feed), 0);
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
  ValueId groups =
      b.op("groups", "Conv", {xd, b.dequantized_weights("w4", {4, 2, 1, 1}, {0.1F, 0.2F, 0.1F, 0.2F})}, {{"group", int64_t{2}}});
  b.output(b.quantize("g", groups, 0.1F, 5));
  b.output(b.op("again", "QuantizeLinear", {xd, s, b.byte("again", 3)}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_conv));
}

}  // namespace
}  // namespace treadle
