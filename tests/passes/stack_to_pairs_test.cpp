#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

TEST(StackToPairs, TheLargestOfAStack) {
  GraphBuilder b;
  std::vector<ValueId> stack;
  for (std::string name : {"x0", "x1", "x2"})
    stack.push_back(b.op(name + "u", "Unsqueeze", {b.input(name, {4, 5}), b.ints(name + "a", {-1})}));
  ValueId joined = b.op("joined", "Concat", stack, {{"axis", int64_t{2}}});
  b.output(b.op("y", "ReduceMax", {joined, b.ints("axes", {-1})}, {{"keepdims", int64_t{0}}}));
  ValueId other = b.op("other", "Concat", {stack[0], stack[2]}, {{"axis", int64_t{-1}}});
  b.output(b.op("z", "ReduceMin", {other, b.ints("axis", {2})}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, testing::pass(passes::stack_to_pairs), 2);
  EXPECT_EQ(text.find("Concat"), std::string::npos) << text;
  EXPECT_NE(text.find("%y f32[4,5] = Squeeze("), std::string::npos) << text;
  EXPECT_NE(text.find("%z f32[4,5,1] = Min(%x0u, %x2u)"), std::string::npos) << text;
}

TEST(StackToPairs, LeavesOthersAlone) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 1}), y = b.input("y", {4, 1}), wide = b.input("wide", {4, 2});
  auto reduced = [&](const std::string& name, std::string_view type, ValueId joined, std::vector<int64_t> axes) {
    b.output(b.op(name, type, {joined, b.ints(name + "_axes", axes)}));
  };
  reduced("sum", "ReduceSum", b.op("j0", "Concat", {x, y}, {{"axis", int64_t{1}}}), {1});  // this would round in another order
  reduced("other", "ReduceMax", b.op("j1", "Concat", {x, y}, {{"axis", int64_t{1}}}), {0});
  reduced("both", "ReduceMax", b.op("j2", "Concat", {x, y}, {{"axis", int64_t{1}}}), {0, 1});
  reduced("more", "ReduceMax", b.op("j3", "Concat", {x, wide}, {{"axis", int64_t{1}}}), {1});
  ValueId read = b.op("j4", "Concat", {x, y}, {{"axis", int64_t{1}}});
  b.output(read);
  reduced("twice", "ReduceMax", read, {1});
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::stack_to_pairs));
}

}  // namespace
}  // namespace treadle
