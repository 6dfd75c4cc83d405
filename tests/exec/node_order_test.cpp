#include "exec/program/node_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "exec/memory/memory_pass.h"
#include "exec/plan/binding.h"
#include "exec/plan/budget.h"
#include "exec/run/frame.h"
#include "exec/run/run_memory.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

// Makes branches that widen x and then reduce it. In the graph's order, all first halves precede all second halves.
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
  testing::HostProgram reordered(wide_branches(64));
  Tensor x(DType::float32, {64, 1});
  for (int64_t i = 0; i < 64; ++i) x.data<float>()[i] = static_cast<float>(i);
  std::vector<Datum> feeds{x}, outputs(1);
  reordered.run(feeds, outputs, {});
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(outputs[0].tensor().data<float>()[i], static_cast<float>(i * 256 * (1 + 2 + 3 + 4)));
  // The new order keeps one wide value of 64 KiB at a time; the graph's order keeps four.
  EXPECT_LT(reordered.plans().bindings().latest_plan()->lower_bound_bytes, 2U * 64 * 256 * 4);
}

// Makes a graph of four branches that widen x or y and add up the result. In the graph's order, all first halves precede all second halves.
// @param opposed  true: y's extent is a constant, so that the extents of x and y differ
std::shared_ptr<Graph> symbolic_branches(bool opposed) {
  GraphBuilder b;
  const Dim n = b.symbol("n"), m = opposed ? Dim(64) : n;
  ValueId x = b.input("x", DType::float32, {n, 1}), y = b.input("y", DType::float32, {m, 1});
  std::vector<ValueId> wide, narrow;
  for (int i = 0; i < 4; ++i) {
    ValueId by = b.constant("by" + std::to_string(i), Tensor::vector<float>(std::vector<float>(256, static_cast<float>(i + 1))));
    wide.push_back(b.node("Mul", {i % 2 ? y : x, by}));
  }
  ValueId axes = b.ints("axes", {0, 1});
  for (ValueId value : wide) narrow.push_back(b.node("ReduceSum", {value, axes}));
  ValueId sum = narrow[0];
  for (size_t i = 1; i < narrow.size(); ++i) sum = b.node("Add", {sum, narrow[i]});
  b.output(sum, "z");
  return b.finish();
}

TEST(NodeOrder, IsChosenForSymbolicExtents) {
  for (bool opposed : {false, true}) {
    auto graph = symbolic_branches(opposed);
    testing::HostProgram program(graph);
    for (int64_t rows : {1, 3, 64, 1000}) {
      Tensor x(DType::float32, {rows, 1}), y(DType::float32, {opposed ? 64 : rows, 1});
      std::fill_n(x.data<float>(), x.num_elements(), 1.0F);
      std::fill_n(y.data<float>(), y.num_elements(), 1.0F);
      std::vector<Datum> feeds{x, y}, outputs(1);
      program.run(feeds, outputs, {});
      EXPECT_EQ(*outputs[0].tensor().data<float>(), static_cast<float>(256 * ((1 + 3) * x.num_elements() + (2 + 4) * y.num_elements())));
    }
    testing::HostProgram fresh(graph);
    Tensor x(DType::float32, {1000, 1}), y(DType::float32, {opposed ? 64 : 1000, 1});
    std::vector<Datum> feeds{x, y}, outputs(1);
    fresh.run(feeds, outputs, {});
    EXPECT_LT(fresh.plans().bindings().latest_plan()->lower_bound_bytes, 2U * 1000 * 256 * 4) << "one wide value at a time, not four";
  }
}

TEST(NodeOrder, LeavesAGraphOfUnboundedExtentsAsItIs) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 1}), shape = b.input("shape", DType::int64, {2});
  std::vector<ValueId> wide, narrow;
  for (int i = 0; i < 2; ++i) wide.push_back(b.node("Expand", {x, shape}));
  ValueId axes = b.ints("axes", {0, 1});
  for (ValueId value : wide) narrow.push_back(b.node("ReduceSum", {value, axes}));
  b.output(b.node("Add", {narrow[0], narrow[1]}), "z");
  auto graph = b.finish();
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

TEST(NodeOrder, UpdatesComeLast) {
  GraphBuilder b;
  ValueId state = b.input("state", DType::float32, {4}), other = b.input("other", DType::float32, {4});
  ValueId x = b.input("x", DType::float32, {4});
  ValueId assigned = b.node("Assign", {state, x}, {}, "first", "treadle");
  b.output(b.node("Assign", {other, assigned}, {}, "second", "treadle"), "new_other");
  ValueId read = b.node("Assign", {b.input("third", DType::float32, {4}), x}, {}, "read", "treadle");
  b.output(b.node("Neg", {read}), "y");
  auto graph = b.finish();
  for (const bool saves_memory : {true, false}) {
    std::vector<std::string> names;
    for (NodeId id : exec::choose_order(*graph, saves_memory))
      names.push_back(graph->node(id).op_type == "Neg" ? "Neg" : graph->node(id).name);
    EXPECT_EQ(names, (std::vector<std::string>{"read", "Neg", "first", "second"}));
  }
}

/// A pass that gives a run an arena of `arena_bytes`.
class Room final : public exec::MemoryPass {
 public:
  Room(size_t arena_bytes, bool may_reorder) : arena_bytes_(arena_bytes), may_reorder_(may_reorder) {}
  bool may_reorder() const override { return may_reorder_; }
  size_t arena_capacity(size_t) const override { return arena_bytes_; }
  std::unique_lock<std::mutex> admit(size_t, size_t, const sharing::Interruption&, const std::function<size_t()>&) override {
    return std::unique_lock(mutex_);
  }
  std::optional<std::unique_lock<std::mutex>> admit_now(size_t) override { return std::unique_lock(mutex_); }
  void refuse(const exec::MemoryNeed&) const override { throw Error(ErrorCode::resource_exhausted, "too little room"); }
  uint64_t generation() const override { return 0; }
  std::string spill_folder() const override { return {}; }

 private:
  size_t arena_bytes_;
  bool may_reorder_;
  std::mutex mutex_;
};

/// Records which instructions have run.
class Noted final : public exec::Observer {
 public:
  std::vector<const exec::Instruction*> ran;
  void ready(const exec::RunState&, const exec::Instruction&) override {}
  void before(const exec::RunState&, const exec::Instruction&) override {}
  void after(const exec::RunState&, const exec::Instruction& instruction, const Device*) override { ran.push_back(&instruction); }
};

TEST(NodeOrder, StopsBehindTheNodeThatIsAskedForInAnyOrder) {
  int moved = 0;  // number of nodes that run at another place in the order
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<Datum> feeds = testing::random_feeds(seed);
    testing::HostProgram program(testing::random_graph(seed, /*data_dependent=*/false));
    std::vector<Datum> expected(program.output_slots().size());
    program.run(feeds, expected, {});
    Room room(program.plans().bindings().latest_plan()->arena_bytes * 7 / 10 / 64 * 64, /*may_reorder=*/true);
    for (exec::InstructionId i : program.instructions().ids()) {
      Noted noted;
      exec::RunControl control;
      control.memory.pass = &room;
      control.observer = &noted;
      exec::Frame frame(program.frames());
      try {
        frame.start(feeds, {}, control, {});
      } catch (const Error&) {
        break;  // no plan fits into the arena
      }
      const exec::BudgetedPlan* plan = frame.state().budget().get();
      if (!plan || plan->order.empty()) break;
      moved += plan->order[index_of(i)] != i;
      frame.advance(frame.steps_through(i));
      ASSERT_FALSE(noted.ran.empty());
      EXPECT_EQ(noted.ran.back(), &program.instructions()[i]) << seed << ", " << index_of(i);
      EXPECT_EQ(std::count(noted.ran.begin(), noted.ran.end(), &program.instructions()[i]), 1);
      EXPECT_EQ(frame.steps_through(i), 0U);
      EXPECT_TRUE(frame.advance());
      std::vector<Datum> outputs(expected.size());
      frame.take_outputs(outputs);
      testing::expect_same_bits(outputs, expected);
    }
  }
  EXPECT_GT(moved, 5);
}

// Makes a chain of cheap values, which later nodes read again in reverse order.
std::shared_ptr<Graph> there_and_back(const std::string& rule) {
  GraphBuilder b;
  std::vector<ValueId> values{b.input("x", DType::float32, {64, 1024})};
  for (int i = 0; i < 8; ++i) values.push_back(b.node(i % 2 ? "Neg" : "Exp", {values.back()}));
  for (size_t i = 8; i-- > 1;) values.push_back(b.node("Add", {values.back(), values[i]}));
  b.output(values.back(), "y");
  for (NodeId id : b.graph().order())
    if (!b.graph().node(id).is("Add") && !rule.empty()) b.graph().node(id).metadata.emplace_back("treadle.recompute", rule);
  return b.finish();
}

TEST(Recompute, FollowsTheNodesOwnRule) {
  Tensor x(DType::float32, {64, 1024});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = static_cast<float>(i % 13) / 100;
  const std::vector<Datum> feeds{x};
  std::vector<Datum> expected(1);
  testing::HostProgram(there_and_back("")).run(feeds, expected, {});
  std::map<std::string, size_t> recomputed, spilled;
  for (const std::string rule : {"", "never", "always"}) {
    testing::HostProgram program(there_and_back(rule));
    Room room(4 * size_t{64} * 1024 * 4, /*may_reorder=*/false);
    exec::RunControl control;
    control.memory.pass = &room;
    exec::Frame frame(program.frames());
    frame.start(feeds, {}, control, {});
    EXPECT_TRUE(frame.advance());
    std::vector<Datum> outputs(1);
    frame.take_outputs(outputs);
    testing::expect_same_bits(outputs, expected);
    ASSERT_NE(frame.state().budget(), nullptr);
    recomputed[rule] = frame.state().budget()->num_recomputed;
    spilled[rule] = frame.state().budget()->spilled_bytes;
  }
  EXPECT_EQ(recomputed["never"], 0U);
  EXPECT_GT(spilled["never"], 0U);
  EXPECT_GT(recomputed[""], 0U);
  EXPECT_GT(recomputed["always"], 0U);
  EXPECT_LE(spilled["always"], spilled[""]);
  EXPECT_LT(spilled["always"], spilled["never"]);
}

TEST(NodeOrder, WithLittleRoomIsTheOneThatMovesLess) {
  int reordered = 0, cheaper = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<Datum> feeds = testing::random_feeds(seed);
    testing::HostProgram program(testing::random_graph(seed, /*data_dependent=*/false));
    std::vector<Datum> expected(program.output_slots().size());
    program.run(feeds, expected, {});
    const size_t whole = program.plans().bindings().latest_plan()->arena_bytes;
    for (size_t part : {9, 8, 7, 6}) {
      double costs[2];
      for (bool free : {false, true}) {
        Room room(whole * part / 10 / 64 * 64, free);
        exec::RunControl control;
        control.memory.pass = &room;
        exec::Frame frame(program.frames());
        try {
          frame.start(feeds, {}, control, {});
        } catch (const Error&) {
          costs[free] = 1e30;
          continue;
        }
        EXPECT_TRUE(frame.advance());
        std::vector<Datum> outputs(expected.size());
        frame.take_outputs(outputs);
        SCOPED_TRACE(std::to_string(seed) + (free ? ", any order, " : ", its own order, ") + std::to_string(part));
        testing::expect_same_bits(outputs, expected);
        const exec::BudgetedPlan* plan = frame.state().budget().get();
        costs[free] = plan ? plan->cost_ns : 0;
        if (free && plan && !plan->order.empty()) {
          ++reordered;
          std::vector<exec::InstructionId> sorted = plan->order;
          std::sort(sorted.begin(), sorted.end());
          for (size_t k = 0; k < sorted.size(); ++k) EXPECT_EQ(index_of(sorted[k]), k);
        }
      }
      EXPECT_LE(costs[true], costs[false]) << seed << ", " << part << " tenths";
      cheaper += costs[true] < costs[false];
    }
  }
  EXPECT_GT(reordered, 5);
  EXPECT_GT(cheaper, 5);
}

}  // namespace
}  // namespace treadle
