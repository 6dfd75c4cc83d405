#include "plugin/custom_operator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "onnx/export.h"
#include "onnx/serialize.h"
#include "tests/exec/graphs.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/session.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

struct Counters {
  std::atomic<int> created{0}, destroyed{0};
};

// The operator computes y = x * factor; the attribute `factor` is 1 by default. y has the type of x.
int infer_scale(void*, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs) {
  host->node_input_type(node, 0, &outputs[0]);
  if (outputs[0].dtype == TREADLE_FLOAT32) return 1;
  host->fail("Scale takes float32");
  return 0;
}

void* create_scale(void* user, const treadle_host* host, const treadle_node* node) {
  ++static_cast<Counters*>(user)->created;
  float factor = 1;
  host->node_attribute_float(node, "factor", &factor);
  return new float(factor);
}

void destroy_scale(void* user, void* state) {
  ++static_cast<Counters*>(user)->destroyed;
  delete static_cast<float*>(state);
}

int run_scale(void*, void* state, const treadle_host* host, treadle_call* call) {
  treadle_tensor_view x;
  if (!host->call_input(call, 0, &x)) return 0;
  void* y = host->call_output(call, 0, x.dtype, x.dims, static_cast<size_t>(x.rank));
  if (!y) return 0;
  struct Work {
    const float* from;
    float* to;
    float factor;
  } work{static_cast<const float*>(x.data), static_cast<float*>(y), *static_cast<float*>(state)};
  int64_t count = 1;
  for (int axis = 0; axis < x.rank; ++axis) count *= x.dims[axis];
  host->parallel_for(
      call, count, 2,
      [](void* context, int64_t begin, int64_t end) {
        auto& w = *static_cast<Work*>(context);
        for (int64_t i = begin; i < end; ++i) w.to[i] = w.from[i] * w.factor;
      },
      &work);
  return 1;
}

treadle_operator scale(Counters& counters) {
  return {.size = sizeof(treadle_operator),
          .domain = "test.custom",
          .op_type = "Scale",
          .min_inputs = 1,
          .max_inputs = 1,
          .num_outputs = 1,
          .deterministic = 1,
          .user = &counters,
          .infer = infer_scale,
          .create = create_scale,
          .destroy = destroy_scale,
          .run = run_scale};
}

Model scaled_model(DType dtype = DType::float32) {
  GraphBuilder builder;
  const ValueId x = builder.input("x", dtype, {builder.symbol("n")});
  builder.graph().opsets["test.custom"] = 1;
  const ValueId y = builder.node("Scale", {x}, {{"factor", 3.0f}}, "", "test.custom");
  builder.output(builder.node("Neg", {y}), "y");
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

TEST(CustomOperator, RunsBetweenOperatorsOfTheLibrary) {
  static Counters counters;
  plugin::register_operator(scale(counters));
  {
    const Session session(scaled_model());
    const Datum y = session.run({{"x", Tensor::vector<float>(std::vector<float>{1, -2, 4})}})[0];
    EXPECT_EQ(y.tensor().shape(), Shape{3});
    const auto values = y.tensor().span<float>();
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()), (std::vector<float>{-3, 6, -12}));
  }
  EXPECT_GT(counters.created, 0);
  EXPECT_EQ(counters.created, counters.destroyed);
}

// Makes a model in which four more values are alive while the operator runs.
Model scaled_late(int64_t elements) {
  GraphBuilder builder;
  builder.graph().opsets["test.custom"] = 1;
  std::vector<ValueId> values{builder.input("x", DType::float32, {elements})};
  for (int i = 0; i < 4; ++i) values.push_back(builder.node("Neg", {values.back()}));
  values.push_back(builder.node("Scale", {values.back()}, {{"factor", 2.0F}}, "", "test.custom"));
  for (size_t i = 4; i > 0; --i) values.push_back(builder.node("Add", {values.back(), values[i]}));
  builder.output(values.back(), "y");
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

TEST(CustomOperator, FindsItsInputsUnderTheLeastLimit) {
  static Counters counters;
  plugin::register_operator(scale(counters));
  constexpr int64_t kElements = 1 << 15;
  Tensor x(DType::float32, {kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = static_cast<float>(i % 100);
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.memory_limit_bytes = 4096;
  Session session(scaled_late(kElements), options);
  size_t least = 0;
  try {
    session.run({{"x", x}});
  } catch (const Error& error) {
    const std::string text = error.what(), before = "at least ";
    ASSERT_NE(text.find(before), std::string::npos) << text;
    least = std::stoull(text.substr(text.find(before) + before.size()));
  }
  session.set_memory_limit(least);
  const Datum y = session.run({{"x", x}})[0];
  // A chain of nodes computes -x, x, -x and x, and a further node doubles the last of these. The output is 2x + x - x + x - x.
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(y.tensor().data<float>()[i], 2 * x.data<float>()[i]);
}

// Requests an output of a billion elements. `user` says how to continue after the refusal.
int run_greedy(void* user, void*, const treadle_host* host, treadle_call* call) {
  treadle_tensor_view x;
  host->call_input(call, 0, &x);
  const int64_t many = int64_t{1} << 30, few = 1;
  if (!host->call_output(call, 0, x.dtype, &many, 1)) {
    if (*static_cast<const bool*>(user)) {
      host->fail("it is all the same to me");
      return 0;
    }
    *static_cast<float*>(host->call_output(call, 0, x.dtype, &few, 1)) = 0;
  }
  return 1;
}

TEST(CustomOperator, MemoryThatRunsOutIsTheNodesErrorWhateverThePluginMakesOfIt) {
  static Counters counters;
  for (bool fails : {false, true}) {
    treadle_operator op = scale(counters);
    op.user = &fails;
    op.create = nullptr;
    op.destroy = nullptr;
    op.infer = nullptr;
    op.run = run_greedy;
    op.op_type = "Greedy";
    plugin::register_operator(op);
    GraphBuilder builder;
    builder.graph().opsets["test.custom"] = 1;
    builder.output(builder.node("Greedy", {builder.input("x", DType::float32, {3})}, {}, "greedy", "test.custom"), "y");
    const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
    SessionOptions options;
    options.memory_limit_bytes = 1 << 20;
    const Session session(Model::from_bytes(std::as_bytes(std::span(bytes))), options);
    try {
      session.run({{"x", Tensor::vector<float>(std::vector<float>{1, -2, 4})}});
      FAIL() << "there is no such memory";
    } catch (const OutOfMemory& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(int64_t{4} << 30)), std::string::npos) << error.what();
    }
  }
}

TEST(CustomOperator, AnInferenceThatFailsNamesTheNode) {
  static Counters counters;
  plugin::register_operator(scale(counters));
  try {
    scaled_model(DType::float64);
    FAIL() << "inference must fail";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Scale takes float32"), std::string::npos) << error.what();
  }
}

TEST(CustomOperator, NamesOfTheLibrarysOwnOperatorsAreTaken) {
  static Counters counters;
  treadle_operator op = scale(counters);
  op.domain = "";
  op.op_type = "Relu";
  EXPECT_THROW(plugin::register_operator(op), Error);
  op = scale(counters);
  op.run = nullptr;
  EXPECT_THROW(plugin::register_operator(op), Error);
  op = scale(counters);
  op.max_inputs = 0;
  EXPECT_THROW(plugin::register_operator(op), Error);
}

}  // namespace
}  // namespace treadle
