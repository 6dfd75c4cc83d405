#include "graph/dead_nodes.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::unique_ptr<Graph> branch(const std::shared_ptr<SymbolTable>& symbols, std::string_view op_type, ValueId& captured) {
  GraphBuilder b(symbols);
  captured = b.input("x", {symbols->symbol("n"), 2});
  b.output(b.op("inner", "Add", {b.op("work", op_type, {captured}), b.scalar("half", 0.5F)}));
  return b.take();
}

std::unique_ptr<Graph> conditional(bool constant) {
  auto symbols = std::make_shared<SymbolTable>();
  GraphBuilder b(symbols);
  ValueId x = b.input("x", {b.symbol("n"), 2});
  ValueId condition = constant ? b.graph().add_constant("c", Tensor::scalar<bool>(false)) : b.input("c", {}, DType::boolean);
  ValueId captured_then{}, captured_else{};
  auto then_branch = branch(symbols, "Relu", captured_then), else_branch = branch(symbols, "Neg", captured_else);
  // The node's types are inferred only after its bodies are set, since inference needs them.
  NodeId id = b.graph().add_node({.op_type = "If", .inputs = {condition}, .name = "choose", .output_names = {"y"}});
  Graph& graph = b.graph();
  graph.node(id).bodies.push_back({"then_branch", std::move(then_branch), {{captured_then, graph.add_capture(id, x)}}});
  graph.node(id).bodies.push_back({"else_branch", std::move(else_branch), {{captured_else, graph.add_capture(id, x)}}});
  infer_node(graph, id);
  b.output(b.op("z", "Abs", {graph.node(id).outputs[0]}));
  return b.take();
}

std::function<int64_t(Graph&)> inlining() {
  return [](Graph& graph) { return testing::pass(passes::inline_constant_if)(graph); };
}

TEST(InlineIf, TheTakenBranchMovesOut) {
  auto graph = conditional(/*constant=*/true);
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2]) {
  %c = constant bool[] {false}
  %y f32[n,2] = If(%c, capture %x)
    then_branch:
      graph g(%x f32[n,2]) {
        %half = constant f32[] {0.5}
        %work f32[n,2] = Relu(%x)
        %inner f32[n,2] = Add(%work, %half)
        return %inner
      }
    else_branch:
      graph g(%x f32[n,2]) {
        %half = constant f32[] {0.5}
        %work f32[n,2] = Neg(%x)
        %inner f32[n,2] = Add(%work, %half)
        return %inner
      }
  %z f32[n,2] = Abs(%y)
  return %z
}
)");
  EXPECT_EQ(testing::changed(*graph, inlining(), 1), R"(graph g(%x f32[n,2]) {
  %half = constant f32[] {0.5}
  %work f32[n,2] = Neg(%x)
  %y f32[n,2] = Add(%work, %half)
  %z f32[n,2] = Abs(%y)
  return %z
}
)");
}

TEST(InlineIf, LeavesAConditionThatIsFed) {
  auto graph = conditional(/*constant=*/false);
  testing::expect_unchanged(*graph, inlining());
}

TEST(RemoveDead, CapturesThatNoBodyReadsGoAndWhatMadeThemToo) {
  auto graph = conditional(/*constant=*/false);
  NodeId choose = graph->first();
  // Makes the then branch read another value, so that only the else branch reads x.
  Graph& then_branch = *graph->node(choose).bodies[0].graph;
  NodeId relu = then_branch.first();
  then_branch.set_input(relu, 0, then_branch.find_value("half"));
  EXPECT_EQ(remove_dead_nodes(*graph), 1);
  EXPECT_EQ(graph->node(choose).inputs.size(), 2U);
  EXPECT_TRUE(graph->node(choose).bodies[0].captures.empty());
  EXPECT_TRUE(then_branch.inputs.empty());
  Graph& else_branch = *graph->node(choose).bodies[1].graph;
  else_branch.set_input(else_branch.first(), 0, else_branch.find_value("half"));
  EXPECT_EQ(remove_dead_nodes(*graph), 1);
  EXPECT_EQ(graph->node(choose).inputs.size(), 1U);
  verify(*graph);
}

}  // namespace
}  // namespace treadle
