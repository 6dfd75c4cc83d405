#include "passes/pipeline.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/passes/pass_test.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using passes::PipelineOptions;
using testing::GraphBuilder;

// Makes a graph that needs several passes, one after the other.
std::unique_ptr<Graph> sample() {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2, 4});
  ValueId copy = b.op("copy", "Identity", {x});
  ValueId dropped = b.op("dropped", "Dropout", {copy});
  ValueId factor = b.op("factor", "Div", {b.scalar("six", 6), b.scalar("three", 3)});
  ValueId scaled = b.op("scaled", "Mul", {dropped, factor});
  ValueId again = b.op("again", "Mul", {x, b.scalar("two", 2)});
  ValueId shape = b.op("shape", "Shape", {scaled});
  ValueId n = b.op("n", "Gather", {shape, b.ints("zero", {0})});
  ValueId target = b.op("target", "Concat", {n, b.ints("rest", {-1})}, {{"axis", int64_t{0}}});
  b.op("unread", "Neg", {x});
  b.output(b.op("y", "Add", {b.op("flat", "Reshape", {scaled, target}), b.op("flat2", "Flatten", {again})}));
  return b.take();
}

TEST(Pipeline, PassesBuildOnEachOther) {
  auto graph = sample();
  auto optimize = [](Graph& g) {
    passes::optimize(g, {.verify = true});
    return int64_t{0};
  };
  EXPECT_EQ(testing::changed(*graph, optimize, 0), R"(graph g(%x f32[n,2,4]) {
  %factor = constant f32[] {2}
  %flat_node/shape = constant i64[2] {0,8}
  %scaled f32[n,2,4] = Mul(%x, %factor)
  %flat f32[n,8] = Reshape(%scaled, %flat_node/shape)
  %flat2 f32[n,8] = Flatten(%scaled)
  %y f32[n,8] = Add(%flat, %flat2)
  return %y
}
)");
}

TEST(Pipeline, EveryPassCanBeNamedLoggedAndSkipped) {
  std::set<std::string> names, ran;
  for (const passes::PassInfo& info : passes::list_passes()) {
    EXPECT_TRUE(names.insert(std::string(info.name)).second) << info.name;
    EXPECT_FALSE(info.description.empty());
  }
  PipelineOptions options;
  options.log = [&](std::string_view pass, const std::string& what, int64_t elapsed_us) {
    ran.insert(std::string(pass));
    EXPECT_NE(what.find(" changes, "), std::string::npos);
    EXPECT_GE(elapsed_us, 0);
  };
  passes::optimize(*sample(), options);
  EXPECT_EQ(ran, (std::set<std::string>{"fold-constants", "remove-identity", "remove-dropout", "static-reshape", "merge-constants",
                                        "merge-common-nodes", "remove-dead"}));
  for (const std::string& pass : ran) EXPECT_TRUE(names.contains(pass));

  ran.clear();
  options.skip.assign(names.begin(), names.end());
  auto graph = sample();
  std::string before = print(*graph);
  passes::optimize(*graph, options);
  EXPECT_TRUE(ran.empty());
  EXPECT_EQ(print(*graph), before);
}

TEST(Pipeline, PassesStayAwayWhereTheirConditionsDoNotHold) {
  auto make = [] {
    GraphBuilder b;
    const ValueId x = b.input("x", {3, 6}), product = b.op("product", "MatMul", {x, b.weights("w", Shape{6, 9})});
    b.output(b.op("y", "Dropout", {b.op("c", "Tanh", {b.op("b", "Exp", {b.op("a", "Relu", {product})})})}));
    return b.take();
  };
  std::map<std::string_view, passes::PassConditions> conditions;
  std::map<std::string_view, passes::Level> levels;
  for (const passes::PassInfo& pass : passes::list_passes()) conditions[pass.name] = pass.conditions, levels[pass.name] = pass.level;
  auto ran = [&](PipelineOptions options) {
    std::set<std::string> names;
    options.log = [&](std::string_view name, const std::string&, int64_t) { names.emplace(name); };
    passes::optimize(*make(), options);
    return names;
  };
  const std::set<std::string> all = ran({}), changing = ran({.weights_change = true}), before = ran({.before_autodiff = true});
  for (const char* name : {"remove-dropout", "fuse-into-matmul", "fuse-elementwise"}) EXPECT_TRUE(all.contains(name)) << name;
  for (const std::string& name : changing) EXPECT_FALSE(conditions.at(name).frozen_weights) << name;
  for (const std::string& name : before) EXPECT_FALSE(conditions.at(name).not_before_autodiff) << name;
  EXPECT_TRUE(changing.contains("fuse-elementwise"));
  const std::set<std::string> for_tools = ran({.for_file = true, .keep_patterns = true});
  EXPECT_TRUE(for_tools.contains("remove-dropout"));
  for (const std::string& name : for_tools) {
    EXPECT_FALSE(conditions.at(name).hides_patterns) << name;
    EXPECT_EQ(levels.at(name), passes::Level::basic) << name;
  }
}

TEST(Pipeline, StopsAfterTheGivenNumberOfPatches) {
  std::set<size_t> sizes;
  for (int64_t limit = 0; limit < 12; ++limit) {
    auto graph = sample();
    int64_t changes = 0;
    PipelineOptions options{.max_patches = limit, .verify = true};
    options.log = [&](std::string_view, const std::string& what, int64_t) { changes += std::stoll(what); };
    passes::optimize(*graph, options);
    EXPECT_LE(changes, limit);
    sizes.insert(graph->num_nodes());
    std::vector<Datum> feeds = testing::random_feeds(*graph);
    EXPECT_EQ(testing::relative_difference(testing::run_graph(*graph, feeds)[0], testing::run_graph(*sample(), feeds)[0]), 0) << limit;
  }
  EXPECT_GE(sizes.size(), 4U);
}

TEST(Pipeline, ADeepChainOfIdentitiesCollapses) {
  GraphBuilder b;
  ValueId y = b.input("x", {b.symbol("n")});
  for (int i = 0; i < 2000; ++i) y = b.op("y" + std::to_string(i), i % 2 ? "Identity" : "Neg", {y});
  b.output(y);
  auto graph = b.take();
  passes::optimize(*graph, {.skip = {"fuse-elementwise"}});
  EXPECT_EQ(graph->num_nodes(), 1000U);
  verify(*graph);
}

// Passes are checked as in debug builds and with TREADLE_VERIFY_PASSES=1. The error names a pass that counts no change though it made one,
// or that leaves the graph inconsistent.
TEST(Pipeline, EveryPassIsCheckedWhereTheProcessAsksForIt) {
  const auto fault = [](const std::function<int64_t(Graph&, int64_t)>& hook) -> std::string {
    try {
      passes::optimize(*sample(), {.before_fusion = hook});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto miscounts = [](Graph& graph, int64_t) {
    graph.rename_value(graph.outputs[0], "other");
    return int64_t{0};
  };
  const auto breaks = [](Graph& graph, int64_t) {
    graph.move_before(graph.node(graph.first()).id, kNoNode);
    return int64_t{1};
  };
  const bool before = passes::verifies_passes();
  passes::set_verifies_passes(false);
  EXPECT_EQ(fault(miscounts), "");
  passes::set_verifies_passes(true);
  EXPECT_NE(fault(miscounts).find("backends counts no change, and made one"), std::string::npos);
  EXPECT_NE(fault(breaks).find("after the pass backends"), std::string::npos) << fault(breaks);
  passes::set_verifies_passes(before);
}

TEST(Pipeline, TheCallersPassCountsLikeAnyOther) {
  int calls = 0;
  int64_t last_limit = -1;
  PipelineOptions options;
  options.before_fusion = [&](Graph&, int64_t limit) {
    ++calls;
    last_limit = limit;
    return int64_t{0};
  };
  int64_t changes = 0;
  options.log = [&](std::string_view, const std::string& what, int64_t) { changes += std::stoll(what); };
  options.max_patches = 100;
  passes::optimize(*sample(), options);
  EXPECT_EQ(last_limit, 100 - changes);
  options.max_patches = changes;
  passes::optimize(*sample(), options);
  EXPECT_EQ(calls, 1) << "nothing is left for it";
}

// The levels mean what ONNX Runtime's mean: first constants and redundant nodes, then fused operators, then layouts.
TEST(Pipeline, EachLevelContainsTheOneBefore) {
  auto types_at = [](passes::Level level) {
    GraphBuilder b;
    ValueId x = b.input("x", {1, 3, 8, 8});
    ValueId conv = b.op("conv", "Conv", {b.op("copy", "Identity", {x}), b.weights("w", {4, 3, 3, 3})});
    ValueId scaled = b.op("scaled", "Mul", {conv, b.scalar("two", 2)});
    ValueId gate = b.op("gate", "Sigmoid", {b.op("e", "Exp", {b.input("z", {5})})});
    b.output(b.op("relu", "Relu", {scaled}));
    b.output(gate);
    auto graph = b.take();
    passes::optimize(*graph, {.level = level, .verify = true});
    std::set<std::string> types;
    for (NodeId id : graph->order()) types.insert(graph->node(id).op_type);
    return types;
  };
  EXPECT_EQ(types_at(passes::Level::basic), (std::set<std::string>{"Conv", "Relu", "Exp", "Sigmoid"}));
  EXPECT_EQ(types_at(passes::Level::extended), (std::set<std::string>{"Conv", "Relu", "FusedElementwise"}));
  EXPECT_TRUE(types_at(passes::Level::layout).contains("NhwcConv"));
}

TEST(Pipeline, PassesHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const passes::PassInfo& pass : passes::list_passes()) EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
  EXPECT_GT(names.size(), 35U);
}

}  // namespace
}  // namespace treadle
