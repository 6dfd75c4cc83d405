// Tests the capabilities on graphs with control flow, data-dependent extents, nodes that end later, Yields and cached values.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "tests/session/capabilities.h"
#include "treadle/plugin.h"

namespace treadle::testing {
namespace {

class GraphCapabilities : public Capabilities {};

INSTANTIATE_TEST_SUITE_P(All, GraphCapabilities, ::testing::Combine(::testing::ValuesIn(kSchedules), ::testing::ValuesIn(kWays)),
                         name_of_case);

// Adds sum = product + 1. A Step computes it if the sum of the products is positive, otherwise an Add.
void add_branches(ModelBuilder& b) {
  b.constant("none", Tensor::scalar(0.0F)).constant("one", Tensor::scalar(1.0F));
  b.node("ReduceSum", {"product"}, {"of_all"});
  onnx::AttributeDef& keepdims = b.last_node().attributes.emplace_back();
  keepdims.name = "keepdims";
  keepdims.type = onnx::AttributeType::i;
  b.node("Greater", {"of_all", "none"}, {"is_positive"}).node("If", {"is_positive"}, {"sum"}, "choose");
  for (const std::string branch : {"then_branch", "else_branch"}) {
    onnx::AttributeDef body;
    body.name = branch;
    body.type = onnx::AttributeType::graph;
    body.g = std::make_unique<onnx::GraphDef>();
    body.g->name = branch;
    body.g->outputs.push_back(ModelBuilder::info(branch + "/sum", {-1, 4}, DType::float32));
    onnx::NodeDef node;
    const bool steps = branch == "then_branch";
    node.op_type = steps ? "Step" : "Add";
    node.domain = steps ? "test.fault" : "";
    node.name = branch + "/node";
    node.inputs = steps ? std::vector<std::string>{"product"} : std::vector<std::string>{"product", "one"};
    node.outputs = {branch + "/sum"};
    body.g->nodes.push_back(std::move(node));
    b.last_node().attributes.push_back(std::move(body));
  }
}

TEST_P(GraphCapabilities, BranchesAreTaken) {
  build_ = [] { return build_model(add_branches); };
  expect_right();
  Tensor x = rows(3, -20);
  const std::vector<float> got = client().run(x, nullptr), expected = client().expected(x);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4F * (1 + std::abs(expected[i]))) << i;
  set_fault(0, [] { throw std::runtime_error("a fault"); });
  const Error error = failure();
  EXPECT_NE(std::string(error.what()).find("then_branch/node"), std::string::npos) << error.what();
  expect_right();
}

// Adds sum = product + the number of nonzero elements of x, an extent that is only known in a run.
TEST_P(GraphCapabilities, ExtentsComeOutInTheRun) {
  build_ = [] {
    return build_model([](ModelBuilder& b) {
      b.constant("second", Tensor::scalar<int64_t>(1));
      b.node("NonZero", {"x"}, {"places"}, "find").node("Shape", {"places"}, {"found"}).node("Gather", {"found", "second"}, {"count"});
      b.node("Size", {"x"}, {"size"});
      for (const std::string n : {"count", "size"}) {
        b.node("Cast", {n}, {n + "_float"});
        onnx::AttributeDef& to = b.last_node().attributes.emplace_back();
        to.name = "to";
        to.type = onnx::AttributeType::i;
        to.i = 1;
      }
      b.node("Div", {"count_float", "size_float"}, {"share"}).node("Add", {"product", "share"}, {"sum"}, "step");
    });
  };
  for (int64_t count : {3, 1, 5}) expect_right(nullptr, count);
  Tensor x = rows(2);
  x.data<float>()[2] = 0;
  std::vector<float> y;
  for (int64_t i = 0; i < 8; ++i) y.push_back(-(x.data<float>()[i] * kWeights[static_cast<size_t>(i % 4)] + 7.0F / 8));
  if (is_way("trainer")) return;
  const std::vector<float> got = client().run(x, nullptr);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(got[i], y[i], 1e-5F) << i;
}

// Computes y = x + 1 on another thread. The gradient passes through unchanged.
int later(void* /*user*/, void* /*state*/, const treadle_host* host, treadle_call* call) {
  std::thread([host, call] {
    treadle_tensor_view x;
    const bool has_input = host->call_input(call, 0, &x) != 0;
    void* out = has_input ? host->call_output(call, 0, x.dtype, x.dims, static_cast<size_t>(x.rank)) : nullptr;
    int64_t count = 1;
    for (int i = 0; out && i < x.rank; ++i) count *= x.dims[i];
    for (int64_t i = 0; out && i < count; ++i) static_cast<float*>(out)[i] = static_cast<const float*>(x.data)[i] + 1;
    host->call_complete(call, out != nullptr, "");
  }).detach();
  return TREADLE_PENDING;
}

void register_later() {
  static std::once_flag once;
  std::call_once(once, [] {
    treadle_operator op{};
    op.size = sizeof op;
    op.domain = "test.capabilities";
    op.op_type = "Later";
    op.min_inputs = op.max_inputs = op.num_outputs = 1;
    op.infer = [](void*, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs) {
      host->node_input_type(node, 0, outputs);
      return 1;
    };
    op.run = later;
    op.gradient = [](void*, const treadle_host* host, treadle_gradient* gradient) {
      const treadle_graph_value dy = host->gradient_of_output(gradient, 0);
      return host->gradient_set(gradient, 0, host->gradient_add(gradient, "", "Identity", &dy, 1));
    };
    ASSERT_EQ(treadle_register_operator(&op), nullptr);
  });
}

TEST_P(GraphCapabilities, NodesEndLater) {
  register_later();
  build_ = [] {
    ModelBuilder b = build_model([](ModelBuilder& made) { made.node("Later", {"product"}, {"sum"}, "step", "test.capabilities"); });
    b.def().opset_imports.push_back({"test.capabilities", 1});
    return b;
  };
  for (int64_t count : {3, 1, 3}) expect_right(nullptr, count);
  RunOptions run;
  std::vector<std::string> ran;
  run.on_metadata = [&](const RunMetadata& metadata) {
    for (const NodeStatistics& node : metadata.nodes) ran.push_back(node.name);
  };
  expect_right(&run);
  EXPECT_EQ(std::ranges::count(ran, "step"), 1);
}

// Makes a model in which sum is the value that the caller returns in place of product.
ModelBuilder with_yield() {
  return build_model([](ModelBuilder& b) { b.node("Yield", {"product"}, {"sum"}, "stop", "treadle"); });
}

TEST_P(GraphCapabilities, RunsStopAtAYield) {
  build_ = with_yield;
  if (is_way("partial")) {
    const Session& session = *client().session();
    PartialRun run = session.partial_run({{"x", rows(2)}});
    EXPECT_FALSE(run.advance());
    ASSERT_TRUE(run.at_yield());
    EXPECT_EQ(floats(run.yielded()[0].second)[1], rows(2).data<float>()[1] * kWeights[1]);
    Tensor given(DType::float32, {2, 4});
    std::fill_n(given.data<float>(), 8, 3.0F);
    EXPECT_TRUE(run.resume(std::vector<Datum>{given}));
    EXPECT_EQ(floats(run.outputs()[0]), std::vector<float>(8, -3.0F));
    return;
  }
  const Error error = failure();
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  EXPECT_EQ(std::string(error.what()), trains() ? "\"stop\": training has no Yields: run the model as a partial run"
                                                : "the graph stops at a Yield; run it as a partial run");
}

TEST_P(GraphCapabilities, ValuesAreKeptAndReplaced) {
  if (!is_way("partial")) GTEST_SKIP() << "takes no cache";
  const Session& session = *client().session();
  auto y_of = [&](const std::shared_ptr<ValueCache>& cache) {
    PartialRun run = session.partial_run({{"x", rows(2)}}, cache);
    run.advance();
    return floats(run.outputs()[0]);
  };
  auto cache = std::make_shared<ValueCache>();
  (*cache)["sum"] = Datum();
  EXPECT_EQ(y_of(cache), outputs_for(rows(2)));
  EXPECT_EQ(floats(cache->at("sum"))[2], rows(2).data<float>()[2] * kWeights[2] + 1);
  bool has_run = false;
  set_fault(0, [&] { has_run = true; });
  EXPECT_EQ(y_of(cache), outputs_for(rows(2)));
  EXPECT_FALSE(has_run) << "the value is there";
  set_fault(-1, {});
  Tensor other(DType::float32, {2, 4});
  std::fill_n(other.data<float>(), 8, 9.0F);
  (*cache)["sum"] = other;
  EXPECT_EQ(y_of(cache), std::vector<float>(8, -9.0F));
}

// The state contains the products of all runs that did not fail.
TEST_P(GraphCapabilities, StatesGrow) {
  if (!is_way("stateful")) GTEST_SKIP() << "has no states";
  for (int64_t count : {1, 3, 1}) expect_right(nullptr, count);
  set_fault(0, [] { throw std::runtime_error("a fault"); });
  failure();
  for (int i = 0; i < 5; ++i) expect_right(nullptr, 1);
}

}  // namespace
}  // namespace treadle::testing
