#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

TEST(RemoveIdentity, ReadersReadWhatTheIdentityRead) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 2});
  ValueId copy = b.op("copy", "Identity", {x});
  b.output(b.op("y", "Relu", {copy}));
  b.output(b.op("last", "Identity", {copy}));
  auto graph = b.take();
  EXPECT_EQ(print(*graph), R"(graph g(%x f32[n,2]) {
  %copy f32[n,2] = Identity(%x)
  %y f32[n,2] = Relu(%copy)
  %last f32[n,2] = Identity(%copy)
  return %y, %last
}
)");
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::remove_identity), 2), R"(graph g(%x f32[n,2]) {
  %y f32[n,2] = Relu(%x)
  return %y, %x
}
)");
  EXPECT_EQ(graph->output_names[1], "last");
}

TEST(RemoveIdentity, LeavesOtherNodesAlone) {
  GraphBuilder b;
  b.output(b.op("y", "Neg", {b.input("x", {2})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::remove_identity));
}

}  // namespace
}  // namespace treadle
