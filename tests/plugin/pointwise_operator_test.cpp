// A pointwise operator that the library does not know, registered through treadle/plugin.h. Passes, planners and training ask only for its
// declared properties, so they treat it like a built-in operator.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "autodiff/gradient.h"
#include "core/values/float_types.h"
#include "kernels/gemm/gemm_bytes.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "onnx/serialize.h"
#include "passes/infer_storage.h"
#include "passes/pipeline.h"
#include "plugin/custom_operator.h"
#include "tests/passes/pass_test.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/train.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

constexpr const char* kDomain = "test.pointwise";

// Computes y = x^3, whose gradient is 3 x^2 dy.
void cube(void*, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * x[i] * x[i];
}

int cube_gradient(void*, const treadle_host* host, treadle_gradient* g) {
  const treadle_graph_value x = host->gradient_input(g, 0), dy = host->gradient_of_output(g, 0);
  const treadle_graph_value square[] = {x, x};
  const treadle_graph_value tripled[] = {host->gradient_add(g, "", "Mul", square, 2), host->gradient_number(g, 3, x)};
  const treadle_graph_value product[] = {host->gradient_add(g, "", "Mul", tripled, 2), dy};
  return host->gradient_set(g, 0, host->gradient_add(g, "", "Mul", product, 2));
}

class PointwiseOperator : public ::testing::Test {
 protected:
  void SetUp() override {
    plugin::register_operator({.size = sizeof(treadle_operator),
                               .domain = kDomain,
                               .op_type = "Cube",
                               .min_inputs = 1,
                               .max_inputs = 1,
                               .num_outputs = 1,
                               .deterministic = 1,
                               .facts = TREADLE_POINTWISE | TREADLE_KEEPS_ZEROS,
                               .map = cube,
                               .gradient = cube_gradient});
  }
};

class Builder : public GraphBuilder {
 public:
  ValueId cubed(std::string_view name, ValueId x) { return node(name, "Cube", {x}, {}, 1, kDomain)[0]; }
  ValueId quantize(const std::string& name, ValueId x, float scale, uint8_t zero) {
    return op(name, "QuantizeLinear", {x, scalar(name + "_s", scale), constant<uint8_t>(name + "_z", Shape{}, {zero})});
  }
  ValueId dequantize(const std::string& name, ValueId x, float scale, uint8_t zero) {
    return op(name, "DequantizeLinear", {x, scalar(name + "_s", scale), constant<uint8_t>(name + "_z", Shape{}, {zero})});
  }
};

int count(const Graph& graph, std::string_view type, std::string_view domain = "") {
  int n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(type, domain) ? 1 : 0;
  return n;
}

/// Runs all passes, which must not change the graph's results. Returns the graph as text.
std::string optimized(Graph& graph, double tolerance, const passes::PipelineOptions& options = {}) {
  const std::vector<Datum> feeds = testing::random_feeds(graph), before = testing::run_graph(graph, feeds);
  passes::optimize(graph, options);
  verify(graph);
  const std::vector<Datum> after = testing::run_graph(graph, feeds);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_LE(testing::relative_difference(after[i], before[i]), tolerance) << "output " << i;
  return print(graph);
}

TEST_F(PointwiseOperator, JoinsChains) {
  Builder b;
  ValueId x = b.input("x", {37, 5}), y = b.input("y", {5});
  b.output(b.op("z", "Sigmoid", {b.op("sum", "Add", {b.cubed("cube", b.op("e", "Exp", {x})), y})}));
  auto graph = b.take();
  const std::string text = optimized(*graph, 1e-6);
  EXPECT_EQ(graph->num_nodes(), 1U) << text;
  EXPECT_NE(text.find("test.pointwise:Cube"), std::string::npos) << text;
}

TEST_F(PointwiseOperator, MovesThroughLayouts) {
  Builder b;
  ValueId x = b.input("x", {2, 3, 9, 8});
  ValueId first = b.op("first", "Conv", {x, b.weights("w1", {6, 3, 3, 3})});
  ValueId second = b.op("second", "Conv", {b.cubed("cube", first), b.weights("w2", {4, 6, 1, 1})});
  b.output(second);
  auto graph = b.take();
  const std::string text = optimized(*graph, 1e-5);
  EXPECT_EQ(count(*graph, "NhwcConv", "treadle"), 2) << text;
  EXPECT_LE(count(*graph, "Transpose"), 2) << text;
  for (NodeId id : graph->order())
    if (graph->node(id).is("Cube", kDomain)) {
      EXPECT_EQ(to_string(*graph->type(graph->node(id).outputs[0]).shape), "[2,7,6,6]") << text;
    }
}

TEST_F(PointwiseOperator, ComputesIn16Bits) {
  std::vector<Float16> numbers;
  for (int i = 0; i < 12; ++i) numbers.push_back(Float16(static_cast<float>(i) / 8 - 0.5F));
  Builder alone;
  alone.output(alone.cubed("y", alone.constant<Float16>("x", Shape{12}, numbers)));
  const Tensor y = testing::run_graph(*alone.take(), {})[0].tensor();
  ASSERT_EQ(y.dtype(), DType::float16);
  for (size_t i = 0; i < 12; ++i) {
    const auto number = static_cast<float>(numbers[i]);
    EXPECT_NEAR(static_cast<float>(reinterpret_cast<const Float16*>(y.raw())[i]), number * number * number, 1e-3);
  }

  Builder b;
  ValueId x = b.input("x", {2, 3}, DType::float16);
  ValueId product = b.op("product", "MatMul", {x, b.constant<Float16>("w", Shape{3, 4}, numbers)});
  b.output(b.op("y", "Relu", {b.cubed("cube", product)}));
  auto graph = b.take();
  passes::FoldLimits limits;
  passes::compute_in_float32(*graph, limits, INT64_MAX);
  verify(*graph);
  const std::string text = print(*graph);
  EXPECT_NE(text.find("%cube/float32 f32[2,4] = test.pointwise.Cube(%product/float32)"), std::string::npos) << text;
}

TEST_F(PointwiseOperator, KeepsSparseZeros) {
  Builder b;
  ValueId x = b.input("x", {3, 4}), w = b.weights("w", {4, 2});
  b.output(b.op("y", "MatMul", {b.cubed("cube", x), w}));
  auto graph = b.take();
  const Tensor dense = Tensor::of<float>(Shape{3, 4}, std::vector<float>{0, 2, 0, -3, 0, 0, 0, 0, 5, 0, 0, 7});
  const Datum expected = testing::run_graph(*graph, {dense})[0];
  std::vector<std::string> fallbacks;
  passes::infer_storage(*graph, {{"x", "csr"}}, [&](const std::string& text) { fallbacks.push_back(text); });
  verify(*graph);
  EXPECT_TRUE(fallbacks.empty()) << fallbacks.front();
  EXPECT_EQ(count(*graph, "SparseMatMul", "treadle"), 1);
  const SparseTensor csr{SparseTensor::Format::csr, Shape{3, 4}, Tensor::vector<float>(std::vector<float>{2, -3, 5, 7}),
                         Tensor::vector<int64_t>(std::vector<int64_t>{1, 3, 0, 3}),
                         Tensor::vector<int64_t>(std::vector<int64_t>{0, 2, 2, 4})};
  EXPECT_LE(testing::relative_difference(testing::run_graph(*graph, {csr})[0], expected), 1e-6);
}

TEST_F(PointwiseOperator, HasTheGradientOfItsPlugin) {
  Builder b;
  ValueId x = b.input("x", {4, 5});
  ValueId loss = b.op("loss", "ReduceSum", {b.cubed("cube", x)}, {{"keepdims", int64_t{0}}});
  b.output(loss);
  const ValueId ys[] = {loss}, xs[] = {x};
  const ValueId dx = autodiff::add_gradients(b.graph(), ys, {}, xs)[0];
  b.output(dx, "dx");
  auto graph = b.take();
  const std::vector<Datum> feeds = testing::random_feeds(*graph);
  optimized(*graph, 1e-6, {.weights_change = true});
  const Tensor found = testing::run_graph(*graph, feeds)[1].tensor(), at = feeds[0].tensor();
  for (int64_t i = 0; i < at.num_elements(); ++i) EXPECT_NEAR(found.data<float>()[i], 3 * at.data<float>()[i] * at.data<float>()[i], 1e-5);
}

// A trainer fuses the operator after autodiff, as it fuses ONNX's operators.
TEST_F(PointwiseOperator, TrainsLikeAnOperatorOfTheLibrary) {
  const auto model = [](bool written_out) {
    Builder b;
    const ValueId x = b.input("x", {b.symbol("n"), 4});
    const ValueId t = b.op("t", "Tanh", {b.op("h", "MatMul", {x, b.weights("w1", {4, 6})})});
    const ValueId c = written_out ? b.op("cube", "Mul", {b.op("square", "Mul", {t, t}), t}) : b.cubed("cube", t);
    b.graph().opsets[kDomain] = 1;
    b.output(b.op("y", "MatMul", {b.op("e", "Exp", {c}), b.weights("w2", {6, 3})}));
    const std::string bytes = onnx::serialize_model(onnx::export_model(*b.take()));
    return Model::from_bytes(std::as_bytes(std::span(bytes)));
  };
  const train::TrainerOptions options{.loss = train::Loss::mean_squared_error, .learning_rate = 0.05};
  train::Trainer trainer(model(false), options), expected(model(true), options);
  const Tensor x = Builder::random_tensor({8, 4}, 1), labels = Builder::random_tensor({8, 3}, 2);
  double first = 0, last = 0;
  for (int step = 0; step < 10; ++step) {
    last = trainer.step({{"x", x}}, labels);
    if (step == 0) first = last;
    EXPECT_NEAR(last, expected.step({{"x", x}}, labels), 1e-5) << step;
  }
  EXPECT_LT(last, first);
  for (const auto& [name, value] : expected.parameters())
    EXPECT_LE(testing::relative_difference(trainer.parameters().at(name), value), 1e-5) << name;
  const std::string text = trainer.to_text();
  EXPECT_NE(text.find("test.pointwise:Cube"), std::string::npos) << "it is in no chain:\n" << text;
  EXPECT_EQ(text.find("= test.pointwise.Cube("), std::string::npos) << text;
}

TEST_F(PointwiseOperator, TakesPartInQuantizedRegions) {
  if (!kernels::has_fast_byte_products()) GTEST_SKIP() << "quantised convolutions keep the file's operators on this machine";
  Builder b;
  ValueId x = b.input("x", {1, 4, 9, 9}, DType::uint8);
  ValueId y = b.quantize("y", b.cubed("cube", b.dequantize("in", x, 0.01F, 120)), 0.02F, 100);
  b.output(y);
  auto graph = b.take();
  Tensor bytes(DType::uint8, Shape{1, 4, 9, 9});
  for (int64_t i = 0; i < bytes.num_elements(); ++i) bytes.data<uint8_t>()[i] = static_cast<uint8_t>(i);
  const Datum before = testing::run_graph(*graph, {bytes})[0];
  passes::optimize(*graph);
  EXPECT_EQ(count(*graph, "ByteTable", "treadle"), 1) << print(*graph);
  EXPECT_EQ(count(*graph, "Cube", kDomain), 0) << print(*graph);
  EXPECT_TRUE(equal(testing::run_graph(*graph, {bytes})[0].tensor(), before.tensor()));
}

TEST_F(PointwiseOperator, ChainsWithItAreWrittenToFiles) {
  Builder b;
  ValueId x = b.input("x", {6});
  b.graph().opsets[kDomain] = 1;
  b.output(b.op("z", "Neg", {b.cubed("cube", b.op("e", "Exp", {x}))}));
  auto graph = b.take();
  const std::vector<Datum> feeds = testing::random_feeds(*graph), before = testing::run_graph(*graph, feeds);
  passes::optimize(*graph, {.for_file = true});
  const std::string bytes = onnx::serialize_model(onnx::export_model(*graph));
  const Session session(Model::from_bytes(std::as_bytes(std::span(bytes))));
  EXPECT_LE(testing::relative_difference(session.run({{"x", feeds[0]}})[0], before[0]), 1e-6);
}

// A plugin that was built against version 1 passes a smaller struct.
TEST_F(PointwiseOperator, OlderPluginsRegister) {
  treadle_operator op{
      .size = offsetof(treadle_operator, facts), .domain = kDomain, .op_type = "Old", .min_inputs = 1, .max_inputs = 1, .num_outputs = 1};
  op.run = [](void*, void*, const treadle_host*, treadle_call*) { return 0; };
  op.facts = 0xFFFFFFFF;  // this field is beyond the declared size of the struct
  plugin::register_operator(op);
  EXPECT_FALSE(find_op(kDomain, "Old")->pointwise);
  op.size = 8;
  EXPECT_THROW(plugin::register_operator(op), Error);
}

TEST_F(PointwiseOperator, MapsOfSeveralOperandsAreRefused) {
  treadle_operator op{
      .size = sizeof(treadle_operator), .domain = kDomain, .op_type = "Two", .min_inputs = 2, .max_inputs = 2, .num_outputs = 1};
  op.facts = TREADLE_POINTWISE;
  op.map = cube;
  EXPECT_THROW(plugin::register_operator(op), Error);
}

}  // namespace
}  // namespace treadle
