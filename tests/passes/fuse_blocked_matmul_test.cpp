#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::string blocked_op_types(const Graph& graph) {
  std::string names;
  for (NodeId id : graph.order()) names += graph.node(id).op_type + " ";
  return names;
}

template <typename T>
std::vector<T> blocked_codes(size_t n) {
  std::mt19937 generator(3);
  std::vector<T> values(n);
  for (T& x : values) x = static_cast<T>(generator());
  return values;
}

TEST(FuseBlockedMatMul, TakesBlocksAlongTheInnerDimensionWithZeroPoints) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 5, 48});
  ValueId codes = b.constant<uint8_t>("codes", Shape{48, 70}, blocked_codes<uint8_t>(48 * 70));
  ValueId zeros = b.constant<uint8_t>("zeros", Shape{3, 70}, blocked_codes<uint8_t>(3 * 70));
  ValueId w =
      b.op("w", "DequantizeLinear", {codes, b.weights("scale", Shape{3, 70}), zeros}, {{"axis", int64_t{0}}, {"block_size", int64_t{16}}});
  b.output(b.op("y", "MatMul", {x, w}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_blocked_matmul), 1, 1e-5);
  EXPECT_EQ(blocked_op_types(*graph), "BlockedMatMul ");
}

TEST(FuseBlockedMatMul, TakesWeightsWithRowsForColumns) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 40});
  ValueId codes = b.constant<int8_t>("codes", Shape{9, 40}, blocked_codes<int8_t>(9 * 40));
  ValueId w = b.op("w", "DequantizeLinear", {codes, b.weights("scale", Shape{9, 2})}, {{"axis", int64_t{1}}, {"block_size", int64_t{32}}});
  b.output(b.op("y", "MatMul", {x, b.op("t", "Transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}})}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_blocked_matmul), 1, 1e-5);
  EXPECT_EQ(blocked_op_types(*graph), "BlockedMatMul ");
}

TEST(FuseBlockedMatMul, TakesAScaleForEachColumn) {
  GraphBuilder b;
  ValueId codes = b.constant<int8_t>("codes", Shape{12, 20}, blocked_codes<int8_t>(240));
  ValueId w = b.op("w", "DequantizeLinear", {codes, b.weights("scale", Shape{20})}, {{"axis", int64_t{-1}}});
  b.output(b.op("y", "MatMul", {b.input("x", {4, 12}), w}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_blocked_matmul), 1, 1e-5);
  EXPECT_EQ(blocked_op_types(*graph), "BlockedMatMul ");
}

TEST(FuseBlockedMatMul, LeavesScalesAlongRowsAndBlocksAlongColumns) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 16}), codes = b.constant<int8_t>("codes", Shape{16, 16}, blocked_codes<int8_t>(256));
  ValueId rows = b.op("rows", "DequantizeLinear", {codes, b.weights("scale", Shape{16})}, {{"axis", int64_t{0}}});
  ValueId blocks =
      b.op("blocks", "DequantizeLinear", {codes, b.weights("scale2", Shape{16, 2})}, {{"axis", int64_t{1}}, {"block_size", int64_t{8}}});
  b.output(b.op("y", "MatMul", {x, rows}));
  b.output(b.op("z", "MatMul", {x, blocks}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_blocked_matmul));
}

}  // namespace
}  // namespace treadle
