#include "plugin/backend.h"

#include <gtest/gtest.h>

#include "onnx/export.h"
#include "onnx/serialize.h"
#include "tests/exec/graphs.h"
#include "tests/plugin/test_backend.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using testing::TestBackend;

Model model_of(GraphBuilder& builder) {
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

// Makes y = Relu(x * w + b), s = Softmax(y), z = s * y + x. There are elementwise nodes before and after the Softmax, and nodes on both
// sides read y.
Model around_softmax() {
  GraphBuilder builder;
  const ValueId x = builder.input("x", DType::float32, {Dim(2), Dim(3)});
  const ValueId w = builder.constant("w", Tensor::scalar(2.0f)), b = builder.constant("b", Tensor::scalar(-1.0f));
  const ValueId y = builder.node("Relu", {builder.node("Add", {builder.node("Mul", {x, w}), b})});
  const ValueId s = builder.node("Softmax", {y}, {{"axis", int64_t{-1}}});
  builder.output(builder.node("Add", {builder.node("Mul", {s, y}), x}), "z");
  return model_of(builder);
}

Tensor sample() { return Tensor::of<float>(Shape{2, 3}, std::vector<float>{0.5f, -1, 2, 3, 0.25f, -4}); }

std::vector<float> run(const Model& model, const std::string& backends, SessionOptions options = {}) {
  if (!backends.empty()) options.config["treadle.backends"] = backends;
  const Session session(model, options);
  const Datum z = session.run({{"x", sample()}})[0];
  const auto values = z.tensor().span<float>();
  return {values.begin(), values.end()};
}

TEST(Backend, SubgraphsAreConvexAndGiveTheSameResults) {
  TestBackend backend;
  backend.register_as("around");
  const Model model = around_softmax();
  EXPECT_EQ(run(model, "around"), run(model, ""));
  // The Softmax reads the output of the subgraph's first part, and the second part reads the Softmax. So there are two subgraphs, one
  // before it and one after it.
  EXPECT_EQ(backend.compiled, 2);
  EXPECT_EQ(backend.runs, 2);
  EXPECT_EQ(backend.released, 2);
}

TEST(Backend, WhatIsRefusedRunsInTheLibrary) {
  TestBackend backend;
  backend.refuse_above = 2;
  backend.register_as("refusing");
  const Model model = around_softmax();
  std::vector<std::string> log;
  SessionOptions options;
  options.on_pass = [&](std::string_view pass, const std::string& what, int64_t) {
    if (pass == "refusing") log.push_back(what);
  };
  EXPECT_EQ(run(model, "refusing", options), run(model, ""));
  EXPECT_EQ(backend.refused, 1);
  EXPECT_EQ(backend.compiled, 1);
  ASSERT_EQ(log.size(), 2U);
  EXPECT_NE(log[0].find("too large for the test backend"), std::string::npos);
}

TEST(Backend, PropertiesAreTriedInTheOrderThatTheSessionNames) {
  TestBackend first, second;
  first.register_as("first");
  second.register_as("second");
  const Model model = around_softmax();
  const auto expected = run(model, "");
  EXPECT_EQ(run(model, "second, first"), expected);
  EXPECT_EQ(second.compiled, 2);
  EXPECT_EQ(first.compiled, 0);
  EXPECT_EQ(run(model, "first.multiply"), expected);  // single multiplications are fewer than its min_nodes
  EXPECT_EQ(first.compiled, 0);
  EXPECT_EQ(run(model, "NONE"), expected);
  EXPECT_EQ(first.compiled, 0);
}

TEST(Backend, InferenceOnlyPropertiesStayOutOfTraining) {
  TestBackend backend;
  backend.register_as("inference");
  SessionOptions options;
  options.mode = SessionMode::training;
  run(around_softmax(), "inference", options);
  EXPECT_EQ(backend.compiled, 0);
}

TEST(Backend, AFailingRunNamesTheNodeAndTheBackendsText) {
  TestBackend backend;
  backend.fail_runs = true;
  backend.register_as("failing");
  try {
    run(around_softmax(), "failing");
    FAIL() << "the run must fail";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("told to fail"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("failing_"), std::string::npos) << error.what();
  }
}

TEST(Backend, PropertiesTakeNodesOfTheirDevice) {
  TestBackend of_host, of_sim;
  of_host.register_as("of_host");
  of_sim.register_as("of_sim", "sim");
  const Model model = around_softmax();
  const auto expected = run(model, "");
  for (const char* device : {"cpu", "sim", "sim:one"}) {
    SCOPED_TRACE(device);
    of_host.compiled = of_sim.compiled = 0;
    SessionOptions options;
    options.device = device;
    EXPECT_EQ(run(model, "of_host,of_sim", options), expected);
    const bool is_sim = std::string(device) != "cpu";
    EXPECT_EQ(of_host.compiled, is_sim ? 0 : 2);
    EXPECT_EQ(of_sim.compiled, is_sim ? 2 : 0);
  }
}

TEST(Backend, SubgraphsLieOnOneDevice) {
  GraphBuilder builder;
  const auto in_group = [&](const std::string& op, std::vector<ValueId> inputs, const char* group) {
    const ValueId y = builder.node(op, std::move(inputs));
    builder.graph().node(builder.graph().value(y).producer).metadata = {{"ctx_group", group}};
    return y;
  };
  const ValueId x = builder.input("x", DType::float32, {Dim(2), Dim(3)});
  const ValueId a = in_group("Mul", {in_group("Relu", {x}, "left"), x}, "left");
  const ValueId b = in_group("Relu", {in_group("Add", {a, x}, "right")}, "right");
  const ValueId c = in_group("Add", {b, a}, "left");  // this node depends on "right", which depends on the first two nodes
  builder.output(in_group("Mul", {c, b}, "host"), "z");
  const Model model = model_of(builder);
  TestBackend of_host, of_sim;
  of_host.register_as("of_host");
  of_sim.register_as("of_sim", "sim");
  SessionOptions options;
  options.device = "sim:0";
  options.group2ctx = {{"left", "sim:0"}, {"right", "sim:1"}, {"host", "cpu"}};
  EXPECT_EQ(run(model, "of_host,of_sim", options), run(model, ""));
  EXPECT_EQ(of_host.compiled, 1);
  EXPECT_EQ(of_sim.compiled, 3);
  ASSERT_EQ(of_sim.runs, 3);
}

TEST(Backend, SubgraphsStandForWhatTheyReplace) {
  TestBackend backend;
  backend.register_as("kept");
  const auto make = [] {
    GraphBuilder builder;
    const ValueId x = builder.input("x", DType::float32, {Dim(2), Dim(3)});
    const ValueId y = builder.node("Relu", {builder.node("Mul", {x, x}, {}, "first")}, {}, "second");
    builder.graph().node(builder.graph().value(y).producer).metadata = {{"treadle.recompute", "always"}};
    builder.output(builder.node("Relu", {builder.node("Exp", {y})}, {}, "third"), "z");
    return builder.finish();
  };
  const auto graph = make();
  EXPECT_EQ(plugin::partition(*graph, {.backends = "kept"}).size(), 2U);
  verify(*graph);
  const Node& made = graph->node(graph->first());
  EXPECT_EQ(made.op_type, "Subgraph");
  EXPECT_EQ(made.sources, (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(made.metadata, (Properties{{"treadle.recompute", "always"}}));
  const auto limited = make();
  EXPECT_EQ(plugin::partition(*limited, {.backends = "kept"}, 1).size(), 1U);
  EXPECT_EQ(backend.compiled, 3);
}

TEST(Backend, SubgraphsCountAsPatches) {
  TestBackend backend;
  backend.register_as("counted");
  SessionOptions options;
  options.max_patches = 0;
  run(around_softmax(), "counted", options);
  EXPECT_EQ(backend.compiled, 0);
}

TEST(Backend, UnknownNamesAreErrors) {
  TestBackend backend;
  backend.register_as("known");
  const Model model = around_softmax();
  EXPECT_THROW(run(model, "unknown"), Error);
  EXPECT_THROW(run(model, "known.unknown"), Error);
}

TEST(Backend, SessionsThatFetchPartOfTheOutputsKeepTheirSubgraphs) {
  TestBackend backend;
  backend.register_as("parts");
  GraphBuilder builder;
  const ValueId x = builder.input("x", DType::float32, {Dim(2), Dim(3)});
  builder.output(builder.node("Relu", {x}), "a");
  builder.output(builder.node("Exp", {x}), "b");
  const Model model = model_of(builder);
  SessionOptions options;
  options.config["treadle.backends"] = "parts";
  const Session session(model, options);
  const std::vector<std::string> wanted{"a"};
  const auto outputs = session.run({{"x", sample()}}, wanted);
  EXPECT_EQ(outputs[0].tensor().data<float>()[5], 0.0f);
  EXPECT_EQ(backend.runs, 1);
  EXPECT_EQ(backend.compiled, 1);
}

TEST(Backend, DescriptionsWithoutWhatTheyNeedAreErrors) {
  treadle_backend backend{};
  EXPECT_THROW(plugin::register_backend(backend), Error);
  backend.size = sizeof backend;
  EXPECT_THROW(plugin::register_backend(backend), Error);
  EXPECT_THROW(plugin::load_plugin("/nowhere/plugin.so"), Error);
}

}  // namespace
}  // namespace treadle
