#include "exec/program/program.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
constexpr auto kPass = [](Graph& graph) { return testing::pass(passes::split_inputs)(graph); };

ValueId gather(GraphBuilder& b, const std::string& name, ValueId data, int64_t index, int64_t axis = 0) {
  return b.op(name, "Gather", {data, b.constant<int64_t>(name + "_index", Shape{}, {index})}, {{"axis", axis}});
}

// The input is a stacked cache of three layers. Each layer takes its part and appends to it, and then the parts are stacked again.
TEST(SplitInputs, AStackedCacheIsReadWhereItLies) {
  GraphBuilder b;
  ValueId past = b.input("past", {3, 2, b.symbol("n"), 4}), row = b.input("row", {2, 1, 4}), axis = b.ints("axis", {0});
  std::vector<ValueId> layers;
  for (int64_t k = 0; k < 3; ++k) {
    const std::string name = "layer" + std::to_string(k);
    ValueId own = gather(b, name, past, k == 2 ? -1 : k);
    layers.push_back(b.op(name + "_grown", "Unsqueeze", {b.op(name + "_joined", "Concat", {own, row}, {{"axis", int64_t{1}}}), axis}));
  }
  b.output(gather(b, "again", past, 1));
  b.output(b.op("present", "Concat", layers, {{"axis", int64_t{0}}}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, kPass, 1);
  EXPECT_EQ(text.find("Gather"), std::string::npos) << text;
  EXPECT_NE(text.find("= Split(%past) {axis=0, num_outputs=3}"), std::string::npos) << text;
  testing::expect_unchanged(*graph, kPass);
  // The layers are all used where they lie in the input, so no part of the cache needs memory in the arena.
  const exec::Program program(std::shared_ptr<const Graph>(std::move(graph)), {.pieces_in_place = true});
  for (const auto& buffer : program.buffers())
    EXPECT_TRUE(buffer.slot == exec::kNoSlot || program.name(buffer.slot).find("layer") == std::string::npos);
}

TEST(SplitInputs, LeavesOthersAlone) {
  GraphBuilder b;
  ValueId some = b.input("some", {3, 2, 4}), inner = b.input("inner", {2, 2, 4}), open = b.input("open", {b.symbol("n"), 4});
  ValueId lists = b.input("lists", {2, 4}), computed = b.op("computed", "Exp", {inner});
  for (int64_t k : {0, 1}) {
    const std::string suffix = std::to_string(k);
    b.output(gather(b, "some" + suffix, some, k));  // no node takes the third layer
    b.output(gather(b, "inner" + suffix, inner, k, 1));
    b.output(gather(b, "open" + suffix, open, k));
    b.output(gather(b, "computed" + suffix, computed, k));
    b.output(b.op("list" + suffix, "Gather", {lists, b.ints("list_index" + suffix, {k})}, {{"axis", int64_t{0}}}));
  }
  auto graph = b.take();
  testing::expect_unchanged(*graph, kPass);
}

}  // namespace
}  // namespace treadle
