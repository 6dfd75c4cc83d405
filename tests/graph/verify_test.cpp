#include <gtest/gtest.h>

#include "tests/graph/graph_builder.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::string breach_of(const Graph& graph) {
  try {
    verify(graph);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

std::unique_ptr<Graph> chain() {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  b.output(b.op("b", "Neg", {b.op("a", "Relu", {x})}));
  return b.take();
}

TEST(Verify, AGraphThatWasBuiltIsConsistent) { EXPECT_EQ(breach_of(*chain()), "none"); }

TEST(Verify, FindsAValueThatIsReadBeforeItIsMade) {
  auto graph = chain();
  graph->move_before(graph->next(graph->first()), graph->first());
  EXPECT_NE(breach_of(*graph).find("Neg node \"b_node\" (ai.onnx, opset 13) reads \"a\" before it is made"), std::string::npos)
      << breach_of(*graph);
}

TEST(Verify, FindsAnOperandWithoutAUse) {
  auto graph = chain();
  graph->value(graph->find_value("a")).uses.clear();
  EXPECT_NE(breach_of(*graph).find("is not among the uses of \"a\""), std::string::npos) << breach_of(*graph);
}

TEST(Verify, FindsAUseWithoutAnOperand) {
  auto graph = chain();
  auto& uses = graph->value(graph->find_value("x")).uses;
  uses.push_back(uses[0]);
  EXPECT_NE(breach_of(*graph).find("3 uses for 2 operands"), std::string::npos) << breach_of(*graph);
}

TEST(Verify, FindsAValueThatNamesAnotherProducer) {
  auto graph = chain();
  graph->value(graph->find_value("a")).producer = graph->next(graph->first());
  EXPECT_NE(breach_of(*graph).find("\"a\" does not name Relu node \"a_node\""), std::string::npos) << breach_of(*graph);
}

TEST(Verify, FindsAnOutputThatNothingMakes) {
  auto graph = chain();
  graph->outputs.push_back(graph->add_value("nothing"));
  EXPECT_NE(breach_of(*graph).find("an output is never made"), std::string::npos) << breach_of(*graph);
}

TEST(Verify, FindsACaptureThatIsNoInputOfItsBody) {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  b.op("y", "Neg", {x});
  GraphBuilder inner(b.graph().symbol_table());
  ValueId inside = inner.input("x", {2});
  inner.output(inner.op("z", "Abs", {inside}));
  b.body("then_branch", inner.take(), {{inside, x}});
  EXPECT_EQ(breach_of(b.graph()), "none");
  b.graph().node(b.last_node()).bodies[0].graph->inputs.clear();
  EXPECT_NE(breach_of(b.graph()).find("captures into a value that is no input of its body"), std::string::npos) << breach_of(b.graph());
}

TEST(Verify, RemovalAndReplacementKeepAGraphConsistent) {
  auto graph = chain();
  ValueId a = graph->find_value("a"), x = graph->find_value("x");
  graph->replace_uses(a, x);
  EXPECT_EQ(breach_of(*graph), "none");
  graph->remove_node(graph->first());
  EXPECT_EQ(breach_of(*graph), "none");
  EXPECT_EQ(print(*graph), "graph g(%x f32[2]) {\n  %b f32[2] = Neg(%x)\n  return %b\n}\n");
}

TEST(Verify, ManyReadersOfOneValueGoInAnyOrder) {
  for (int order = 0; order < 3; ++order) {
    GraphBuilder b;
    ValueId x = b.input("x", {2});
    std::vector<NodeId> nodes;
    for (int i = 0; i < 9; ++i) {
      b.op("y" + std::to_string(i), "Add", {x, x});
      nodes.push_back(b.last_node());
    }
    if (order == 1) std::reverse(nodes.begin(), nodes.end());
    if (order == 2) std::swap(nodes[2], nodes[7]);
    for (NodeId id : nodes) {
      b.graph().remove_node(id);
      EXPECT_EQ(breach_of(b.graph()), "none");
    }
    EXPECT_TRUE(b.graph().value(x).uses.empty());
  }
}

}  // namespace
}  // namespace treadle
