#include "graph/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "graph/op_def.h"
#include "tests/graph/graph_builder.h"

namespace treadle {
namespace {

TEST(Graph, AValueMayBeNamedAfterAnother) {
  Graph graph(std::make_shared<SymbolTable>());
  ValueId first = graph.add_input("a", {});
  // Passes a reference to a short name, stored within the pool of values, while the pool grows and moves.
  for (int i = 0; i < 100; ++i) graph.add_value(graph.value(first).name);
  EXPECT_EQ(graph.value(ValueId{100}).name, "a_100");
  EXPECT_NO_THROW(verify(graph));
}

TEST(Graph, UsesOfAValueWithThousandsOfReadersComeAndGoInAnyOrder) {
  testing::GraphBuilder b;
  const ValueId x = b.input("x", {4}), other = b.input("other", {4});
  std::vector<NodeId> nodes;
  for (int i = 0; i < 3000; ++i) {
    b.op("y" + std::to_string(i), "Add", {x, x});
    nodes.push_back(b.last_node());
  }
  Graph& graph = b.graph();
  std::shuffle(nodes.begin(), nodes.end(), std::mt19937(3));
  const int64_t before = graph.num_searched();
  for (size_t i = 0; i < 1000; ++i) graph.set_input(nodes[i], 0, other);
  for (size_t i = 500; i < 2000; ++i) graph.remove_node(nodes[i]);
  verify(graph);
  EXPECT_EQ(graph.value(x).uses.size(), 500U + 2000U);
  EXPECT_EQ(graph.value(other).uses.size(), 500U);
  graph.replace_uses(other, x);
  for (size_t i = 0; i < 500; ++i) graph.set_input(nodes[i], 0, other);
  verify(graph);
  // Most of the 4,500 changes search none of a value's thousands of readers; some changes search all of them.
  EXPECT_LT(graph.num_searched() - before, 60 * 4500);
  for (NodeId id : graph.order()) graph.remove_node(id);
  EXPECT_TRUE(graph.value(x).uses.empty());
  EXPECT_TRUE(graph.value(other).uses.empty());
}

TEST(Graph, OutputsAreFoundWhereverTheyMove) {
  OutputList outputs;
  const ValueId a{1}, b{2}, c{3};
  for (ValueId id : {a, b, a, c}) outputs.push_back(id);
  EXPECT_TRUE(outputs.contains(a));
  outputs.replace(a, b);
  EXPECT_FALSE(outputs.contains(a));
  EXPECT_EQ(std::vector<ValueId>(outputs), (std::vector<ValueId>{b, b, b, c}));
  outputs.erase(outputs.begin() + 3);
  EXPECT_FALSE(outputs.contains(c));
  outputs.insert(outputs.begin(), a);
  outputs.set(1, c);
  EXPECT_EQ(std::vector<ValueId>(outputs), (std::vector<ValueId>{a, c, b, b}));
  EXPECT_EQ(outputs.replace(c, a), 1U);
  EXPECT_EQ(outputs.replace(a, b), 2U);
  EXPECT_EQ(std::vector<ValueId>(outputs), (std::vector<ValueId>{b, b, b, b}));
  EXPECT_EQ(outputs.replace(c, a), 0U);
  outputs.clear();
  EXPECT_FALSE(outputs.contains(b));
  EXPECT_TRUE(outputs.empty());
}

}  // namespace
}  // namespace treadle
