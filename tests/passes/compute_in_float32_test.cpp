#include <cmath>

#include "core/values/float_types.h"
#include "passes/pipeline.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

int64_t convert(Graph& graph) {
  passes::FoldLimits limits;
  return passes::compute_in_float32(graph, limits, INT64_MAX);
}

/// Returns random numbers, uniform in [-1, 1), rounded to the 16-bit type.
template <typename Half>
std::vector<Half> halves(int64_t count, uint32_t seed) {
  const Tensor random = GraphBuilder::random_tensor(Shape{count}, seed);
  std::vector<Half> result;
  for (float x : random.span<float>()) result.push_back(Half(x));
  return result;
}

int count(const Graph& graph, std::string_view type, std::string_view domain = "") {
  int n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(type, domain) ? 1 : 0;
  return n;
}

TEST(ComputeInFloat32, CastsStandAtTheBordersOnly) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3}, DType::float16);
  ValueId product = b.op("product", "MatMul", {x, b.constant<Float16>("w", Shape{3, 4}, halves<Float16>(12, 1))});
  ValueId sum = b.op("sum", "Add", {product, b.constant<Float16>("bias", Shape{4}, {Float16(1), Float16(2), Float16(3), Float16(-4)})});
  ValueId back = b.op("back", "Transpose", {b.op("act", "Relu", {sum})}, {{"perm", Ints{1, 0}}});
  b.output(back);
  auto graph = b.take();
  EXPECT_EQ(convert(*graph), 4);
  verify(*graph);
  EXPECT_EQ(print(*graph), R"(graph g(%x f16[2,3]) {
  %w/float32 = constant f32[3,4] {...}
  %bias/float32 = constant f32[4] {1,2,3,-4}
  %x/float32 f32[2,3] = Cast(%x) {to=1}
  %product/float32 f32[2,4] = MatMul(%x/float32, %w/float32)
  %sum/float32 f32[2,4] = Add(%product/float32, %bias/float32)
  %act/float32 f32[2,4] = Relu(%sum/float32)
  %back/float32 f32[4,2] = Transpose(%act/float32) {perm=[1,0]}
  %back f16[4,2] = Cast(%back/float32) {to=10}
  return %back
}
)");
  EXPECT_EQ(convert(*graph), 0);
}

// Compares with sums of the same operands in double. Results may differ only by their rounding.
template <typename Half>
void expect_one_rounding(int digits) {
  constexpr int64_t kRows = 5, kDepth = 70, kColumns = 9;
  const auto a = halves<Half>(kRows * kDepth, 3), w = halves<Half>(kDepth * kColumns, 4), bias = halves<Half>(kColumns, 5);
  GraphBuilder b;
  ValueId x = b.input("x", {kRows, kDepth}, dtype_of<Half>);
  ValueId product = b.op("product", "MatMul", {x, b.constant<Half>("w", Shape{kDepth, kColumns}, w)});
  b.output(b.op("y", "Add", {product, b.constant<Half>("bias", Shape{kColumns}, bias)}));
  auto graph = b.take();
  EXPECT_EQ(convert(*graph), 2);
  const auto y = testing::run_graph(*graph, {Tensor::of<Half>(Shape{kRows, kDepth}, std::span<const Half>(a))});
  ASSERT_EQ(y[0].tensor().dtype(), dtype_of<Half>);
  for (int64_t m = 0; m < kRows; ++m)
    for (int64_t n = 0; n < kColumns; ++n) {
      auto at = [](const std::vector<Half>& values, int64_t i) { return double{static_cast<float>(values[static_cast<size_t>(i)])}; };
      double exact = at(bias, n);
      for (int64_t k = 0; k < kDepth; ++k) exact += at(a, m * kDepth + k) * at(w, k * kColumns + n);
      const double got = static_cast<float>(y[0].tensor().template data<Half>()[m * kColumns + n]);
      EXPECT_NEAR(got, exact, std::ldexp(std::fabs(exact), -digits) * 1.01 + 1e-5);
    }
}
TEST(ComputeInFloat32, OneRoundingIsLeft) {
  expect_one_rounding<Float16>(11);
  expect_one_rounding<BFloat16>(8);
}

TEST(ComputeInFloat32, ComparisonsReadRoundedValues) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 1, 4, 4}, DType::float16);
  ValueId pooled = b.op("pooled", "GlobalAveragePool", {x});
  b.output(b.op("larger", "Greater", {x, pooled}));
  auto graph = b.take();
  EXPECT_EQ(convert(*graph), 1);
  verify(*graph);
  const Node& larger = graph->node(graph->value(graph->outputs[0]).producer);
  for (ValueId input : larger.inputs) EXPECT_EQ(graph->type(input).dtype, DType::float16);
}

TEST(ComputeInFloat32, ACacheIsJoinedAsItIs) {
  GraphBuilder b;
  ValueId cache = b.input("cache", {7, 4}, DType::float16), x = b.input("x", {1, 4}, DType::float16);
  ValueId fresh = b.op("fresh", "MatMul", {x, b.constant<Float16>("w", Shape{4, 4}, halves<Float16>(16, 6))});
  b.output(b.op("grown", "Concat", {cache, fresh}, {{"axis", int64_t{0}}}));
  auto graph = b.take();
  EXPECT_EQ(convert(*graph), 1);
  verify(*graph);
  EXPECT_EQ(graph->type(graph->outputs[0]).dtype, DType::float16);
  EXPECT_TRUE(graph->node(graph->value(graph->outputs[0]).producer).is("Concat"));
}

TEST(ComputeInFloat32, ACastOfTheModelReadsWhatWasComputed) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3}, DType::float16);
  ValueId y = b.op("y", "Softmax", {x});
  b.output(b.op("scaled", "Mul", {b.op("wide", "Cast", {y}, {{"to", int64_t{1}}}), b.scalar("two", 2)}));
  auto graph = b.take();
  EXPECT_EQ(convert(*graph), 2);
  verify(*graph);
  EXPECT_EQ(count(*graph, "Cast"), 1);
}

TEST(ComputeInFloat32, LeavesOthersAlone) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3}, DType::float16), wide = b.input("wide", {2, 3});
  b.output(b.op("sum", "Add", {x, x}));
  b.output(b.op("soft", "Softmax", {wide}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, convert);
}

// Weights above the limit stay in 16 bits: the session would otherwise hold them in both types.
TEST(ComputeInFloat32, LargeWeightsStay) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3}, DType::float16);
  b.output(b.op("y", "MatMul", {x, b.constant<Float16>("w", Shape{3, 4}, halves<Float16>(12, 1))}));
  auto graph = b.take();
  passes::FoldLimits limits{.max_bytes_each = 40};
  testing::expect_unchanged(*graph, [&](Graph& g) { return passes::compute_in_float32(g, limits, INT64_MAX); });
}

TEST(ComputeInFloat32, ConvolutionsGetTheirChannelsInnermostUnlessSkipped) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8}, DType::float16);
  ValueId conv = b.op("conv", "Conv", {x, b.constant<Float16>("w", Shape{4, 3, 3, 3}, halves<Float16>(108, 8))});
  b.output(b.op("y", "Relu", {conv}));
  auto graph = b.take();
  auto skipped = graph->clone(), for_file = graph->clone();
  passes::optimize(*graph);
  EXPECT_EQ(count(*graph, "NhwcConv", "treadle"), 1);
  EXPECT_EQ(graph->type(graph->outputs[0]).dtype, DType::float16);
  passes::PipelineOptions options;
  options.skip = {"compute-in-float32"};
  passes::optimize(*skipped, options);
  EXPECT_EQ(count(*skipped, "Cast"), 0);
  passes::optimize(*for_file, {.for_file = true});
  EXPECT_EQ(count(*for_file, "Cast"), 0);
}

}  // namespace
}  // namespace treadle
