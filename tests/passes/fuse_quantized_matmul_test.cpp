#include "kernels/gemm/gemm_bytes.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

template <typename T>
std::vector<T> codes(size_t n, int low, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<T> values(n);
  for (T& x : values) x = static_cast<T>(low + static_cast<int>(generator() % 256));
  return values;
}

std::string op_types(const Graph& graph) {
  std::string names;
  for (NodeId id : graph.order()) names += graph.node(id).op_type + " ";
  return names;
}

class FuseQuantizedMatMul : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::has_fast_byte_products()) GTEST_SKIP() << "floats are faster on this machine";
  }
};

TEST_F(FuseQuantizedMatMul, TakesSignedWeightsWithAScaleForEachColumn) {
  GraphBuilder b;
  ValueId zero = b.constant<uint8_t>("zero", Shape{}, {131});
  ValueId a = b.op("a", "QuantizeLinear", {b.input("x", {b.symbol("n"), 7, 37}), b.scalar("a_scale", 0.01F), zero});
  ValueId w = b.constant<int8_t>("w", Shape{37, 70}, codes<int8_t>(37 * 70, -128, 3));
  std::vector<float> scales(70);
  for (size_t i = 0; i < 70; ++i) scales[i] = 0.01F + 0.001F * static_cast<float>(i);
  ValueId left = b.op("left", "DequantizeLinear", {a, b.scalar("a_scale2", 0.01F), zero});
  ValueId right = b.op("right", "DequantizeLinear", {w, b.floats("w_scale", scales)}, {{"axis", int64_t{1}}});
  b.output(b.op("y", "MatMul", {left, right}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_quantized_matmul), 1, 3e-6);
  EXPECT_EQ(op_types(*graph), "QuantizeLinear QuantizedMatMul ");
}

TEST_F(FuseQuantizedMatMul, TakesBatchesOfTwoActivationsWithZeroPoints) {
  for (bool is_signed : {false, true}) {
    GraphBuilder b;
    auto quantized = [&](std::string name, SymbolicShape shape) {
      ValueId zero = is_signed ? b.constant<int8_t>(name + "_zero", Shape{}, {-7}) : b.constant<uint8_t>(name + "_zero", Shape{}, {99});
      ValueId scale = b.scalar(name + "_scale", 0.01F);
      ValueId q = b.op(name + "_q", "QuantizeLinear", {b.input(name, std::move(shape)), scale, zero});
      return b.op(name + "_d", "DequantizeLinear", {q, scale, zero});
    };
    ValueId left = quantized("a", {2, 3, 9, 30}), right = quantized("b", {2, 1, 30, 65});
    b.output(b.op("y", "MatMul", {left, right}));
    auto graph = b.take();
    testing::changed(*graph, testing::pass(passes::fuse_quantized_matmul), 1, 3e-6);
    EXPECT_EQ(op_types(*graph), "QuantizeLinear QuantizeLinear QuantizedMatMul ");
  }
}

TEST_F(FuseQuantizedMatMul, TakesMatMulIntegerWithItsScales) {
  GraphBuilder b;
  std::vector<ValueId> q = b.node("q", "DynamicQuantizeLinear", {b.input("x", {b.symbol("n"), 40})}, {}, 3);
  ValueId w = b.constant<uint8_t>("w", Shape{40, 66}, codes<uint8_t>(40 * 66, 0, 3));
  ValueId zeros = b.constant<uint8_t>("zeros", Shape{66}, codes<uint8_t>(66, 0, 4));
  ValueId sums = b.op("sums", "MatMulInteger", {q[0], w, q[2], zeros});
  ValueId scale = b.op("scale", "Mul", {q[1], b.weights("w_scale", Shape{66})});
  b.output(b.op("y", "Mul", {b.op("cast", "Cast", {sums}, {{"to", int64_t{1}}}), scale}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_quantized_matmul), 1, 1e-6);
  EXPECT_EQ(op_types(*graph), "DynamicQuantizeLinear QuantizedMatMul ");
}

TEST_F(FuseQuantizedMatMul, TakesGemmWithWeightsInEitherOrder) {
  for (const bool transposed : {false, true}) {
    GraphBuilder b;
    ValueId zero = b.constant<uint8_t>("zero", Shape{}, {131}), scale = b.scalar("a_scale", 0.01F);
    ValueId a = b.op("a", "QuantizeLinear", {b.input("x", {b.symbol("n"), 37}), scale, zero});
    ValueId w = b.constant<int8_t>("w", transposed ? Shape{70, 37} : Shape{37, 70}, codes<int8_t>(37 * 70, -128, 3));
    ValueId left = b.op("left", "DequantizeLinear", {a, scale, zero});
    ValueId right = b.op("right", "DequantizeLinear", {w, b.weights("w_scale", Shape{70})}, {{"axis", int64_t{transposed ? 0 : -1}}});
    b.output(b.op("y", "Gemm", {left, right, b.weights("bias", Shape{70})}, {{"transB", int64_t{transposed}}}));
    auto graph = b.take();
    testing::changed(*graph, testing::pass(passes::fuse_quantized_matmul), 1, 3e-6);
    EXPECT_EQ(op_types(*graph), transposed ? "QuantizeLinear Transpose QuantizedMatMul Add " : "QuantizeLinear QuantizedMatMul Add ");
  }
}

TEST_F(FuseQuantizedMatMul, LeavesScalesAlongRowsAndFloats) {
  GraphBuilder b;
  ValueId x = b.input("x", {5, 8}), zero = b.constant<uint8_t>("zero", Shape{}, {131}), one = b.scalar("one", 0.01F);
  ValueId left = b.op("left", "DequantizeLinear", {b.op("q", "QuantizeLinear", {x, one, zero}), one, zero});
  ValueId w = b.constant<int8_t>("w", Shape{8, 8}, codes<int8_t>(64, -128, 3));
  ValueId rows = b.op("rows", "DequantizeLinear", {w, b.weights("w_scale", Shape{8})}, {{"axis", int64_t{0}}});
  b.output(b.op("y", "MatMul", {left, rows}));
  b.output(b.op("z", "MatMul", {left, b.weights("floats", Shape{8, 8})}));
  ValueId columns = b.op("columns", "DequantizeLinear", {w, b.weights("w_scale2", Shape{8})}, {{"axis", int64_t{1}}});
  b.output(b.op("scaled", "Gemm", {left, columns}, {{"alpha", 0.5F}}));
  b.output(b.op("turned", "Gemm", {left, columns}, {{"transB", int64_t{1}}}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_quantized_matmul));
}

}  // namespace
}  // namespace treadle
