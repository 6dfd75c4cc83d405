#include "graph/graph.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"

namespace treadle {
namespace {

TEST(Graph, AValueMayBeNamedAfterAnother) {
  Graph graph(std::make_shared<SymbolTable>());
  ValueId first = graph.add_input("a", {});
  // The name lies inside the pool that grows, short enough to be stored in place.
  for (int i = 0; i < 100; ++i) graph.add_value(graph.value(first).name);
  EXPECT_EQ(graph.value(ValueId{100}).name, "a_100");
  EXPECT_NO_THROW(verify(graph));
}

}  // namespace
}  // namespace treadle
