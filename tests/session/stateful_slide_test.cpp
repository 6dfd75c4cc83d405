// Tests states that grow along an inner axis (heads before rows): new states are made in the memory of the old ones, and an error leaves
// the old state.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "tests/exec/allocation_counter.h"
#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/hooks.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using testing::ModelBuilder;

constexpr int64_t kLayers = 2, kHeads = 3, kWidth = 4;

void give(ModelBuilder& b, const std::string& name, int64_t value) {
  onnx::AttributeDef& made = b.last_node().attributes.emplace_back();
  made.name = name;
  made.type = onnx::AttributeType::i;
  made.i = value;
}

// Makes present[l] = Concat(past[l], x or -x) along the rows, for two layers, which the file stacks. The outputs y and z are one head of
// each, chosen by the inputs "pick" and "pick2"; an index out of bounds ends the run there. The second layer depends on the first.
ModelBuilder stacked() {
  ModelBuilder b;
  b.input("past", {kLayers, 1, kHeads, -1, kWidth}).input("x", {1, kHeads, -1, kWidth});
  b.input("pick", {1}, DType::int64).input("pick2", {1}, DType::int64);
  b.def().graph.inputs[0].type.shape->at(3).param = "p";
  b.output("present", {kLayers, 1, kHeads, -1, kWidth}).output("y", {1, 1, -1, kWidth}).output("z", {1, 1, -1, kWidth});
  for (auto& output : b.def().graph.outputs) output.type.shape->at(output.name == "present" ? 3 : 2).param = "m";
  b.constant("axis", Tensor::vector<int64_t>(std::vector<int64_t>{0}));
  b.node("Split", {"past"}, {"s0", "s1"});
  give(b, "axis", 0);
  give(b, "num_outputs", 2);
  for (const auto& [i, rows, pick, out] : {std::tuple{"0", "x", "pick", "y"}, std::tuple{"1", "negated", "pick2", "z"}}) {
    const std::string n = i;
    if (n == "1") b.node("ReduceSum", {"y"}, {"sum"}).node("Sub", {"sum", "sum"}, {"zero"}).node("Sub", {"zero", "x"}, {"negated"});
    b.node("Squeeze", {"s" + n, "axis"}, {"q" + n});
    b.node("Concat", {"q" + n, rows}, {"c" + n});
    give(b, "axis", -2);
    b.node("Gather", {"c" + n, pick}, {out});
    give(b, "axis", 1);
    b.node("Unsqueeze", {"c" + n, "axis"}, {"u" + n});
  }
  b.node("Concat", {"u0", "u1"}, {"present"});
  give(b, "axis", 0);
  return b;
}

float element(int64_t head, int64_t row, int64_t column) { return static_cast<float>(1000 * head + 10 * row + column); }

Tensor new_rows(int64_t first, int64_t count) {
  Tensor x(DType::float32, {1, kHeads, count, kWidth});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = element(i / (count * kWidth), first + i / kWidth % count, i % kWidth);
  return x;
}

void expect_state(const Tensor& state, int64_t rows) {
  ASSERT_EQ(state.shape(), (Shape{kLayers, 1, kHeads, rows, kWidth}));
  for (int64_t i = 0; i < state.num_elements(); ++i) {
    const int64_t row = i / kWidth % rows, head = i / (kWidth * rows);
    const float wanted = element(head % kHeads, row, i % kWidth);
    ASSERT_EQ(state.data<float>()[i], head < kHeads ? wanted : -wanted) << "head " << head << " row " << row << " of " << rows;
  }
}

class StatefulSlide : public ::testing::Test {
 protected:
  explicit StatefulSlide() : session_(stacked().model()), runs_(session_, {{"past", "present"}}, {{"past", empty()}}) {}
  static Tensor empty() { return Tensor(DType::float32, {kLayers, 1, kHeads, 0, kWidth}); }
  static Tensor index(int64_t i) { return Tensor::vector<int64_t>(std::vector<int64_t>{i}); }

  std::vector<Datum> append(int64_t count, int64_t pick = 1, int64_t pick2 = 2, const RunOptions* options = nullptr) {
    std::vector<Datum> results = runs_.run({{"x", new_rows(rows_, count)}, {"pick", index(pick)}, {"pick2", index(pick2)}}, {}, options);
    rows_ += count;
    return results;
  }
  const std::byte* place() const { return runs_.state("past").tensor().raw(); }

  Session session_;
  StatefulRun runs_;
  int64_t rows_ = 0;
};

TEST_F(StatefulSlide, RowsMoveDownInOneBlock) {
  int slid = 0;
  for (int step = 0; step < 300; ++step) {
    const std::byte* before = place();
    const int64_t count = 1 + step % 3;
    const std::vector<Datum> results = append(count);
    slid += place() == before - kLayers * kHeads * count * kWidth * 4;
    expect_state(runs_.state("past").tensor(), rows_);
    ASSERT_EQ(results.size(), 2U);
    for (int64_t i = 0; i < rows_ * kWidth; ++i) {
      ASSERT_EQ(results[0].tensor().data<float>()[i], element(1, i / kWidth, i % kWidth));
      ASSERT_EQ(results[1].tensor().data<float>()[i], -element(2, i / kWidth, i % kWidth));
    }
  }
  EXPECT_GE(slid, 290);
}

TEST_F(StatefulSlide, AfterAnErrorTheStateIsTheOneBefore) {
  for (int step = 0; step < 40; ++step) {
    append(1);
    for (auto [pick, pick2] : {std::pair<int64_t, int64_t>{9, 0}, {0, 9}, {9, 9}}) {
      const int64_t rows = rows_;
      EXPECT_THROW(append(2, pick, pick2), Error);
      EXPECT_EQ(rows_, rows);
      expect_state(runs_.state("past").tensor(), rows_);
    }
  }
}

TEST_F(StatefulSlide, AfterAnErrorOfAHookBehindTheRunAsWell) {
  for (int step = 0; step < 10; ++step) append(1);
  const HookId failing = register_hook(HookPoint::post_run, 0, [](const HookedRun&) { throw Error(ErrorCode::io_error, "no disk"); });
  EXPECT_THROW(append(1), Error);
  unregister_hook(failing);
  expect_state(runs_.state("past").tensor(), rows_);
  append(1);
  expect_state(runs_.state("past").tensor(), rows_);
}

// Whichever allocation fails, the state is complete: it is the old one, or the new one if the run had ended.
TEST_F(StatefulSlide, SurvivesEveryFailingAllocation) {
  for (int step = 0; step < 10; ++step) append(1);
  for (int64_t k = 0; k < 80; ++k) {
    std::map<std::string, Datum> feeds{{"x", new_rows(rows_, 1)}, {"pick", index(0)}, {"pick2", index(1)}};
    try {
      const testing::FailingNew failing(k, /*all=*/false);
      runs_.run(feeds);
    } catch (const std::exception&) {
    }
    rows_ = runs_.state("past").tensor().shape()[3];
    expect_state(runs_.state("past").tensor(), rows_);
  }
  EXPECT_GT(rows_, 10);
}

TEST_F(StatefulSlide, AStateThatSomebodyHoldsStaysAsItIs) {
  for (int step = 0; step < 20; ++step) {
    append(1);
    const Datum held = runs_.state("past");
    append(2);
    expect_state(held.tensor(), rows_ - 2);
    expect_state(runs_.state("past").tensor(), rows_);
  }
}

// If an output is the state, or a view of it, it belongs to the caller, so rows must not move in its memory.
TEST(StatefulSlideOfOutputs, AStateThatIsAnOutputTooStaysAsItIs) {
  for (const bool view : {false, true}) {
    ModelBuilder b;
    b.input("past", {1, kHeads, -1, kWidth}).input("x", {1, kHeads, -1, kWidth});
    b.def().graph.inputs[0].type.shape->at(2).param = "p";
    b.output("present", {1, kHeads, -1, kWidth});
    b.node("Concat", {"past", "x"}, {"joined"});
    give(b, "axis", -2);
    b.node("Identity", {"joined"}, {"present"});
    if (view) b.node("Flatten", {"past"}, {"flat"});
    b.output(view ? "flat" : "past", view ? std::vector<int64_t>{1, -1} : std::vector<int64_t>{1, kHeads, -1, kWidth});
    SessionOptions options;
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    Session session(b.model(), options);
    StatefulRun runs(session, {{"past", "present"}}, {{"past", Tensor(DType::float32, {1, kHeads, 0, kWidth})}});
    for (int64_t rows = 0; rows < 20; ++rows) {
      const std::vector<Datum> results = runs.run({{"x", new_rows(rows, 1)}});
      ASSERT_EQ(results.size(), 1U);
      for (int64_t i = 0; i < kHeads * rows * kWidth; ++i)
        ASSERT_EQ(results[0].tensor().data<float>()[i], element(i / (kWidth * rows), i / kWidth % rows, i % kWidth))
            << "of " << rows << " rows";
    }
  }
}

TEST_F(StatefulSlide, OnlyWhereTheCallerStaysUntilTheEnd) {
  RunOptions options;
  options.deadline_ms = 60'000;
  for (int step = 0; step < 20; ++step) {
    append(1, 1, 2, step % 2 == 0 ? &options : nullptr);
    expect_state(runs_.state("past").tensor(), rows_);
  }
}

}  // namespace
}  // namespace treadle
