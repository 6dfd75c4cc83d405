#include "exec/node_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "exec/binding.h"
#include "exec/frame.h"
#include "tests/exec/graphs.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

// Branches that widen x and reduce it again, all first halves before all second halves.
std::shared_ptr<Graph> wide_branches(const Dim& rows) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {rows, 1});
  std::vector<ValueId> wide, narrow;
  for (int i = 0; i < 4; ++i) {
    ValueId by = b.constant("by" + std::to_string(i), Tensor::vector<float>(std::vector<float>(256, static_cast<float>(i + 1))));
    wide.push_back(b.node("Mul", {x, by}));
  }
  ValueId axes = b.ints("axes", {1});
  for (ValueId value : wide) narrow.push_back(b.node("ReduceSum", {value, axes}));
  ValueId sum = narrow[0];
  for (size_t i = 1; i < narrow.size(); ++i) sum = b.node("Add", {sum, narrow[i]});
  b.output(sum, "y");
  return b.finish();
}

TEST(NodeOrder, RunsOneBranchAfterTheOtherToKeepFewerBytes) {
  exec::Program reordered(wide_branches(64));
  Tensor x(DType::float32, {64, 1});
  for (int64_t i = 0; i < 64; ++i) x.data<float>()[i] = static_cast<float>(i);
  std::vector<Datum> feeds{x}, outputs(1);
  exec::run(reordered, feeds, outputs, {});
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(outputs[0].tensor().data<float>()[i], static_cast<float>(i * 256 * (1 + 2 + 3 + 4)));
  // One wide value of 64 KiB at a time; the order as written keeps four.
  EXPECT_LT(reordered.bindings().latest_plan()->lower_bound_bytes, 2U * 64 * 256 * 4);
}

TEST(NodeOrder, LeavesAGraphOfUnknownExtentsAsItIs) {
  GraphBuilder b;
  auto graph = wide_branches(b.symbol("n"));
  EXPECT_EQ(exec::choose_order(*graph), graph->order());
}

TEST(NodeOrder, KeepsEverythingOnItsSideOfAYield) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {1024, 1024});
  ValueId early = b.node("Neg", {x});
  ValueId handed = b.node("Abs", {x});
  ValueId back = b.node("Yield", {handed}, {}, "yield", "treadle");
  ValueId late = b.node("Exp", {x});
  b.output(b.node("Sum", {early, back, late}), "y");
  auto graph = b.finish();
  auto order = exec::choose_order(*graph);
  auto at = [&](const char* op) {
    return std::find_if(order.begin(), order.end(), [&](NodeId id) { return graph->node(id).op_type == op; }) - order.begin();
  };
  EXPECT_LT(at("Neg"), at("Yield"));
  EXPECT_LT(at("Abs"), at("Yield"));
  EXPECT_LT(at("Yield"), at("Exp"));
  EXPECT_LT(at("Yield"), at("Sum"));
}

}  // namespace
}  // namespace treadle
