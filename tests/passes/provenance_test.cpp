// What nodes stand for survives every pass: their sources, and the marks of the model's metadata.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

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

void mark_all(Graph& graph) {
  for (NodeId id : graph.order()) {
    graph.node(id).metadata = {{kMark, "always"}};
    for (Body& body : graph.node(id).bodies) mark_all(*body.graph);
  }
}

/// The first node, bodies included, that stands for nothing or has lost its mark; empty if there is none.
std::string first_loss(const Graph& graph) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (node.sources.empty()) return describe(node) + " has no sources";
    const bool marked = std::any_of(node.metadata.begin(), node.metadata.end(), [](const auto& entry) { return entry.first == kMark; });
    if (!marked) return describe(node) + " has lost its mark";
    for (const Body& body : node.bodies)
      if (std::string loss = first_loss(*body.graph); !loss.empty()) return loss;
  }
  return {};
}

TEST(Provenance, SourcesAndMarksSurviveEveryPassOfRealModels) {
  const char* data = std::getenv("TREADLE_TEST_DATA");
  if (!data || !fs::is_directory(fs::path(data) / "models")) GTEST_SKIP() << "TREADLE_TEST_DATA is not set";
  for (const auto& file : fs::directory_iterator(fs::path(data) / "models")) {
    if (file.path().extension() != ".onnx") continue;
    SCOPED_TRACE(file.path().filename().string());
    const onnx::ModelDef model = onnx::parse_model_file(file.path().string());
    const std::unique_ptr<Graph> graph = onnx::import_graph(model);
    if (!onnx::list_unsupported(*graph).empty()) continue;
    mark_all(*graph);
    onnx::upgrade(*graph);
    ASSERT_EQ(first_loss(*graph), "") << "after the upgrade";
    std::string lost;
    passes::PipelineOptions options;
    options.verify = true;
    options.log = [&](std::string_view pass, const std::string&, int64_t) {
      if (std::string loss = first_loss(*graph); lost.empty() && !loss.empty()) lost = std::string(pass) + ": " + loss;
    };
    passes::optimize(*graph, options);
    EXPECT_EQ(lost, "");
    EXPECT_EQ(first_loss(*graph), "");
  }
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
  EXPECT_EQ(made.metadata, (std::vector<std::pair<std::string, std::string>>{{kMark, "always"}, {"a", "1"}}));
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
