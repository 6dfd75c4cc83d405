#include "graph/patch.h"

#include <gtest/gtest.h>

#include "tests/graph/graph_builder.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

// A rule that a test makes from a name and a function.
class TestRule final : public Rule {
 public:
  using Match = std::function<std::optional<Patch>(const Graph&, const Node&)>;
  TestRule(std::string name, Match match) : name_(std::move(name)), match_(std::move(match)) {}
  std::string_view name() const override { return name_; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override { return match_(graph, node); }

 private:
  std::string name_;
  Match match_;
};

std::vector<std::unique_ptr<Rule>> one(std::string name, TestRule::Match match) {
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<TestRule>(std::move(name), std::move(match)));
  return rules;
}

// Replaces Neg(x) by Abs(0) - x, with a patch of two nodes.
std::optional<Patch> subtract(const Graph&, const Node& node) {
  if (!node.is("Neg")) return std::nullopt;
  Patch patch;
  ValueId zero = patch.constant("zero", Tensor::scalar<float>(0));
  ValueId abs = patch.add({.op_type = "Abs", .inputs = {zero}});
  patch.replace(node.outputs[0], patch.add({.op_type = "Sub", .inputs = {abs, node.inputs[0]}}));
  return patch;
}

std::unique_ptr<Graph> chain(int length) {
  GraphBuilder b;
  ValueId y = b.input("x", {b.symbol("n")});
  for (int i = 0; i < length; ++i) y = b.op("y" + std::to_string(i), "Neg", {y});
  b.output(y);
  return b.take();
}

TEST(Patch, NewNodesStandWhereTheMatchedOneStoodUnderItsValuesName) {
  auto graph = chain(1);
  EXPECT_EQ(apply_rules(*graph, one("subtract", subtract)), 1);
  verify(*graph);
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n]) {
  %zero = constant f32[] {0}
  %Abs_out f32[] = Abs(%zero)
  %y0 f32[n] = Sub(%Abs_out, %x)
  return %y0
}
)");
  for (NodeId id : graph->order()) EXPECT_EQ(graph->node(id).sources, std::vector<std::string>{"y0"});
}

TEST(Patch, NodesThatAPatchMakesSuperfluousLeaveTheirSources) {
  auto graph = chain(2);
  auto cancel = [](const Graph& g, const Node& node) -> std::optional<Patch> {
    NodeId producer = node.is("Neg") ? g.value(node.inputs[0]).producer : kNoNode;
    if (producer == kNoNode || !g.node(producer).is("Neg")) return std::nullopt;
    Patch patch;
    patch.replace(node.outputs[0], patch.add({.op_type = "Identity", .inputs = {g.node(producer).inputs[0]}}));
    return patch;
  };
  EXPECT_EQ(apply_rules(*graph, one("cancel", cancel)), 1);
  EXPECT_EQ(graph->num_nodes(), 1U);
  EXPECT_EQ(graph->node(graph->first()).sources, (std::vector<std::string>{"y0", "y1"}));
}

TEST(Patch, RulesCanBeSkippedByName) {
  auto graph = chain(3);
  auto rules = one("subtract", subtract);
  EXPECT_EQ(apply_rules(*graph, rules, {.skip = {"subtract"}}), 0);
  EXPECT_EQ(apply_rules(*graph, rules, {.skip = {"other"}}), 3);
}

TEST(Patch, StopsAfterTheGivenNumberAndLogsEachPatch) {
  auto graph = chain(5);
  std::vector<std::string> log;
  PatchOptions options{.max_patches = 2};
  options.log = [&](std::string_view rule, const Node& node) { log.push_back(std::string(rule) + " " + node.name); };
  EXPECT_EQ(apply_rules(*graph, one("subtract", subtract), options), 2);
  EXPECT_EQ(log, (std::vector<std::string>{"subtract y0_node", "subtract y1_node"}));
  verify(*graph);
}

TEST(Patch, APatchThatChangesATypeIsRefused) {
  auto graph = chain(1);
  auto widen = [](const Graph&, const Node& node) -> std::optional<Patch> {
    if (!node.is("Neg")) return std::nullopt;
    Patch patch;
    patch.replace(node.outputs[0], patch.add({.op_type = "Cast", .inputs = {node.inputs[0]}, .attributes = {{"to", int64_t{11}}}}));
    return patch;
  };
  try {
    apply_rules(*graph, one("widen", widen));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_NE(std::string(error.what()).find("the rule widen replaces \"y0\" of type f32[n] by one of type f64[n]"), std::string::npos)
        << error.what();
  }
}

TEST(Patch, TwoRulesThatUndoEachOtherAreFound) {
  auto graph = chain(1);
  auto swap = [](const Graph&, const Node& node) -> std::optional<Patch> {
    Patch patch;
    patch.replace(node.outputs[0], patch.add({.op_type = node.is("Neg") ? "Relu" : "Neg", .inputs = {node.inputs[0]}}));
    return patch;
  };
  EXPECT_THROW(apply_rules(*graph, one("swap", swap)), Error);
}

TEST(Patch, BodiesAreRewrittenToo) {
  GraphBuilder b;
  ValueId c = b.input("c", {}, DType::boolean);
  NodeId id = b.graph().add_node({.op_type = "If", .inputs = {c}, .name = "choose", .output_names = {"y"}});
  for (const char* attribute : {"then_branch", "else_branch"}) {
    GraphBuilder inner(b.graph().symbol_table());
    inner.output(inner.op("z", "Neg", {inner.floats("k", {1, 2})}));
    b.graph().node(id).bodies.push_back({attribute, inner.take(), {}});
  }
  infer_node(b.graph(), id);
  b.output(b.graph().node(id).outputs[0]);
  EXPECT_EQ(apply_rules(b.graph(), one("subtract", subtract), {.max_patches = 1}), 1);
  EXPECT_EQ(apply_rules(b.graph(), one("subtract", subtract)), 1);
  verify(b.graph());
}

TEST(Patch, AnInputDoesNotTakeOverADeclaration) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n")});
  ValueId y = b.op("y", "Identity", {x});
  b.graph().value(y).type = Type::tensor(DType::float32, SymbolicShape{4});  // a file may declare the value wrongly in this way
  b.output(y);
  auto remove = [](const Graph&, const Node& node) { return std::optional(Patch::replacement(node.outputs[0], node.inputs[0])); };
  EXPECT_EQ(apply_rules(b.graph(), one("remove", remove)), 1);
  EXPECT_EQ(to_string(b.graph().type(x)), "f32[n]");
}

}  // namespace
}  // namespace treadle
