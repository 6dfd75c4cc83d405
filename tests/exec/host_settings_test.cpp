#include "exec/program/host_settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/exec/graphs.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::set<std::string> settings_of(const Graph& graph) {
  std::set<std::string> names;
  for (const Node* node : exec::nodes_of_settings(graph)) names.insert(node->name);
  return names;
}

// Takes half of the rows. Their number is computed by nodes from Shape to the Slice's input.
TEST(HostSettings, AreMadeOfShapesForInputsThatTheHostReads) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8});
  const ValueId squares = b.node("Mul", {x, x}, {}, "squares");
  const ValueId extents = b.node("Shape", {squares}, {{"end", int64_t{1}}}, "extents");
  const ValueId half = b.node("Div", {extents, b.ints("two", {2})}, {}, "half");
  b.output(b.node("Slice", {squares, b.ints("zero", {0}), half, b.ints("axis", {0})}, {}, "cut"), "y");
  EXPECT_EQ(settings_of(*b.finish()), (std::set<std::string>{"extents", "half"}));
}

TEST(HostSettings, AreNoneOfTheGraphsOutputsAndOfWhatIsComputedWith) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8});
  const ValueId extents = b.node("Shape", {x}, {{"end", int64_t{1}}}, "extents");
  const ValueId half = b.node("Div", {extents, b.ints("two", {2})}, {}, "half"),
                third = b.node("Div", {extents, b.ints("three", {3})}, {}, "third");
  const ValueId number = b.node("Cast", {third}, {{"to", static_cast<int64_t>(DType::float32)}}, "number");
  const ValueId cut = b.node("Slice", {x, b.ints("zero", {0}), third, b.ints("axis", {0})}, {}, "cut");
  b.output(b.node("Mul", {cut, number}, {}, "product"), "y");
  b.output(half, "half");
  EXPECT_EQ(settings_of(*b.finish()), (std::set<std::string>{}));
}

// Settings that follow from elements in a device's memory are computed on the device, and copied back.
TEST(HostSettings, AreNotMadeOfElementsThatADeviceHas) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::int64, {b.symbol("n"), 8});
  const ValueId most = b.node("ReduceMax", {x, b.ints("axes", {0, 1})}, {{"keepdims", int64_t{0}}}, "most");
  const ValueId end = b.node("Unsqueeze", {most, b.ints("first", {0})}, {}, "end");
  b.output(b.node("Slice", {x, b.ints("zero", {0}), end, b.ints("axis", {0})}, {}, "cut"), "y");
  EXPECT_EQ(settings_of(*b.finish()), (std::set<std::string>{}));
}

TEST(HostSettings, MayBeMadeOfSmallFeeds) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {b.symbol("n"), 8}), length = b.input("length", DType::int64, {1});
  const ValueId end = b.node("Add", {length, b.ints("one", {1})}, {}, "end");
  b.output(b.node("Slice", {x, b.ints("zero", {0}), end, b.ints("axis", {0})}, {}, "cut"), "y");
  EXPECT_EQ(settings_of(*b.finish()), (std::set<std::string>{"end"}));
}

}  // namespace
}  // namespace treadle
