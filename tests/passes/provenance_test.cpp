// Tests that every pass keeps the nodes' provenance: their sources, and the marks in the metadata of the model.
#include "tests/passes/provenance.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <vector>

#include "autodiff/gradient.h"
#include "graph/infer.h"
#include "graph/rewriter.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "passes/pipeline.h"
#include "tests/graph/graph_builder.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;
using testing::GraphBuilder;

constexpr const char* kMark = "treadle.recompute";

struct Options {
  const char* name;
  passes::PipelineOptions passes;
};

std::vector<Options> option_sets() {
  return {{"as sessions have it", {}},
          {"for training", {.weights_change = true, .weights_packed = true}},
          {"before autodiff", {.weights_change = true, .before_autodiff = true}},
          {"for a file", {.for_file = true}},
          {"for a file that keeps its quantisation", {.keep_quantization = true, .for_file = true}},
          {"bfloat16", {.precision = passes::PrecisionRules::parse("bfloat16")}},
          {"chosen convolutions", {.conv_choice = {.max_weight_expansion = 1}}}};
}

/// Applies the passes, and returns the name of the first pass that loses a node's sources, with the node; empty if no pass does. Adds the
/// passes that changed the graph to `ran`.
std::string first_loss_of_passes(Graph& graph, passes::PipelineOptions options, std::set<std::string>& ran) {
  std::string lost;
  options.verify = true;
  options.log = [&](std::string_view pass, const std::string&, int64_t) {
    ran.emplace(pass);
    if (!lost.empty()) return;
    if (const std::string loss = testing::first_loss(graph); !loss.empty()) lost = std::string(pass) + ": " + loss;
  };
  passes::optimize(graph, options);
  return lost.empty() ? testing::first_loss(graph) : lost;
}

TEST(Provenance, SourcesAndMarksSurviveEveryPassOfRealModels) {
  const char* data = std::getenv("TREADLE_TEST_DATA");
  if (!data || !fs::is_directory(fs::path(data) / "models")) GTEST_SKIP() << "TREADLE_TEST_DATA is not set";
  std::set<std::string> ran;
  for (const auto& file : fs::directory_iterator(fs::path(data) / "models")) {
    if (file.path().extension() != ".onnx") continue;
    SCOPED_TRACE(file.path().filename().string());
    const onnx::ModelDef model = onnx::parse_model_file(file.path().string());
    const std::unique_ptr<Graph> graph = onnx::import_graph(model);
    if (!onnx::list_unsupported(*graph).empty()) continue;
    testing::mark_all(*graph);
    onnx::upgrade(*graph);
    ASSERT_EQ(testing::first_loss(*graph), "") << "after the upgrade";
    for (const Options& options : option_sets()) {
      SCOPED_TRACE(options.name);
      EXPECT_EQ(first_loss_of_passes(*graph->clone(), options.passes, ran), "");
    }
  }
  EXPECT_GE(ran.size(), 28U) << "the other passes have tests of their own only, which check the same";
}

// The graph is a network with gradients: convolutions, statistics, matrix products and a normalisation.
TEST(Provenance, SourcesAndMarksSurviveOnJointGraphs) {
  for (const bool packed : {false, true}) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 3, 12, 12});
    std::vector<ValueId> parameters;
    const auto parameter = [&](const char* name, SymbolicShape shape) {
      parameters.push_back(b.input(name, std::move(shape)));
      return parameters.back();
    };
    const ValueId first = b.op("first", "Relu", {b.op("conv", "Conv", {x, parameter("w1", {8, 3, 3, 3}), parameter("b1", {8})})});
    const ValueId second =
        b.op("second", "Conv",
             {b.op("pool", "AveragePool", {first}, {{"kernel_shape", std::vector<int64_t>{2, 2}}}), parameter("w2", {4, 8, 1, 1})});
    const ValueId flat = b.op("flat", "Flatten", {b.op("act", "Sigmoid", {second})});
    const ValueId product = b.op("product", "Gemm", {flat, parameter("w3", {4 * 9 * 9, 6}), parameter("b3", {6})});
    const ValueId normal = b.op("normal", "LayerNormalization", {product, parameter("scale", {6}), parameter("shift", {6})});
    const ValueId loss = b.op("loss", "ReduceMean", {b.op("square", "Mul", {normal, normal})}, {{"keepdims", int64_t{0}}});
    b.output(loss);
    const ValueId ys[] = {loss};
    for (const ValueId gradient : autodiff::add_gradients(b.graph(), ys, {}, parameters)) b.output(gradient);
    auto graph = b.take();
    infer(*graph);
    testing::mark_all(*graph);
    std::set<std::string> ran;
    EXPECT_EQ(first_loss_of_passes(*graph, {.weights_change = true, .weights_packed = packed}, ran), "");
    EXPECT_TRUE(ran.contains("assign-layout"));
  }
}

TEST(Provenance, LossesAreFound) {
  GraphBuilder b;
  b.output(b.op("y", "Relu", {b.op("x2", "Neg", {b.input("x", {4})})}));
  auto graph = b.take();
  testing::mark_all(*graph);
  EXPECT_EQ(testing::first_loss(*graph), "");
  Node& first = graph->node(graph->first());
  first.sources.emplace_back("another");
  EXPECT_NE(testing::first_loss(*graph).find("has lost the mark of another"), std::string::npos);
  first.sources.clear();
  EXPECT_NE(testing::first_loss(*graph).find("has no sources"), std::string::npos);
}

TEST(Rewriter, NewNodesStandForWhatTheyReplace) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4});
  b.op("first", "Relu", {x});
  const NodeId first = b.last_node();
  const ValueId y = b.op("second", "Neg", {b.graph().node(first).outputs[0]});
  const NodeId second = b.last_node();
  b.output(y);
  auto graph = b.take();
  graph->node(first).metadata = {{kMark, "always"}, {"a", "1"}};
  graph->node(second).metadata = {{"a", "2"}};
  Rewriter rewriter(*graph);
  const NodeId pair[] = {first, second};
  EXPECT_TRUE(rewriter.change(pair, [&] {
    const ValueId made = rewriter.add({.op_type = "Exp", .inputs = {x}}, second);
    rewriter.replace(y, made);
    graph->remove_node(second);
    graph->remove_node(first);
    return true;
  }));
  verify(*graph);
  const Node& made = graph->node(graph->first());
  EXPECT_EQ(made.sources, (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(made.metadata, (Properties{{kMark, "always"}, {"a", "1"}}));
  EXPECT_EQ(graph->value(graph->outputs[0]).name, "second");
}

TEST(Rewriter, StopsAtItsLimit) {
  GraphBuilder b;
  b.output(b.op("y", "Relu", {b.input("x", {4})}));
  auto graph = b.take();
  Rewriter rewriter(*graph, 1);
  const NodeId node = graph->first();
  EXPECT_FALSE(rewriter.change(node, [] { return false; })) << "nothing was changed";
  EXPECT_TRUE(rewriter.change(node, [] { return true; }));
  EXPECT_TRUE(rewriter.is_at_limit());
  EXPECT_FALSE(rewriter.change(node, [] { return true; }));
  EXPECT_EQ(rewriter.count(), 1);
}

}  // namespace
}  // namespace treadle
