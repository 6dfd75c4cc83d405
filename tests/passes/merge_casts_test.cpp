#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

constexpr int64_t kFloat = 1, kInt8 = 3, kInt32 = 6, kInt64 = 7, kHalf = 10, kDouble = 11;

Attributes to(int64_t dtype) { return {{"to", dtype}}; }

TEST(MergeCasts, AWiderTypeBetweenTwoCastsGoes) {
  GraphBuilder b;
  ValueId x = b.input("x", {4}), i = b.input("i", {4}, DType::int32);
  b.output(b.op("half", "Cast", {b.op("double", "Cast", {x}, to(kDouble))}, to(kHalf)));
  b.output(b.op("back", "Cast", {b.op("double2", "Cast", {x}, to(kDouble))}, to(kFloat)));
  b.output(b.op("small", "Cast", {b.op("long", "Cast", {i}, to(kInt64))}, to(kInt8)));
  b.output(b.op("same", "Cast", {b.op("real", "Cast", {i}, to(kDouble))}, to(kInt32)));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_casts), 4), R"(graph g(%x f32[4], %i i32[4]) {
  %half f16[4] = Cast(%x) {to=10}
  %small i8[4] = Cast(%i) {to=3}
  return %half, %x, %small, %i
}
)");
}

TEST(MergeCasts, ACastToTheTypeThatIsThereGoes) {
  GraphBuilder b;
  b.output(b.op("same", "Cast", {b.input("x", {4})}, to(kFloat)));
  auto graph = b.take();
  EXPECT_EQ(testing::changed(*graph, testing::pass(passes::merge_casts), 1), "graph g(%x f32[4]) {\n  return %x\n}\n");
}

TEST(MergeCasts, LeavesATypeThatLosesSomething) {
  GraphBuilder b;
  ValueId x = b.input("x", {4}), i = b.input("i", {4}, DType::int32);
  b.output(b.op("rounded", "Cast", {b.op("half", "Cast", {x}, to(kHalf))}, to(kFloat)));
  b.output(b.op("truncated", "Cast", {b.op("int", "Cast", {x}, to(kInt32))}, to(kFloat)));
  b.output(b.op("inexact", "Cast", {b.op("float", "Cast", {i}, to(kFloat))}, to(kInt32)));   // float represents only 24 of the 31 bits
  b.output(b.op("undefined", "Cast", {b.op("real", "Cast", {i}, to(kDouble))}, to(kInt8)));  // only one of the two conversions wraps around
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::merge_casts));
}

}  // namespace
}  // namespace treadle
