#include "exec/run/run_budget.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "core/threads/thread_pool.h"
#include "exec/memory/memory_pass.h"
#include "exec/plan/budget.h"
#include "exec/run/frame.h"
#include "exec/run/run_memory.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

constexpr int64_t kRows = 64, kColumns = 16;
constexpr size_t kValueBytes = size_t{kRows} * kColumns * 4;
constexpr int kLinks = 12;

// Makes a chain of values, which later nodes read again in reverse order.
std::shared_ptr<Graph> there_and_back() {
  GraphBuilder b;
  std::vector<ValueId> values{b.input("x", DType::float32, {kRows, kColumns})};
  for (int i = 0; i < kLinks; ++i) values.push_back(b.node(i % 2 ? "Neg" : "Sigmoid", {values.back()}));
  for (size_t i = kLinks; i-- > 1;) values.push_back(b.node("Add", {values.back(), values[i]}));
  b.output(values.back(), "y");
  return b.finish();
}

/// Limits a run to arenas of so many values: at first, from node `first_change` on, and after two refused requests for more. The arenas are
/// too small to be resized.
class ChangingRoom final : public exec::MemoryPass {
 public:
  ChangingRoom(std::array<size_t, 3> values, int first_change) : values_(values), left_(first_change) {}
  bool may_reorder() const override { return false; }
  size_t arena_capacity(size_t) const override { return values_[stage_] * kValueBytes; }
  std::unique_lock<std::mutex> admit(size_t, size_t, const sharing::Interruption&, const std::function<size_t()>&) override {
    return std::unique_lock(mutex_);
  }
  std::optional<std::unique_lock<std::mutex>> admit_now(size_t) override {
    if (stage_ != 1) return std::unique_lock(mutex_);
    if (++refused_ == 2) stage_ = 2;  // the first request is for a second arena, the next for one in place of the first
    return std::nullopt;
  }
  void refuse(const exec::MemoryNeed&) const override { throw Error(ErrorCode::resource_exhausted, "too little room"); }
  uint64_t generation() const override {  // the executor calls this before every node
    if (stage_ == 0 && left_-- == 0) stage_ = 1;
    return stage_;
  }
  std::string spill_folder() const override { return {}; }
  size_t stage() const { return stage_; }

 private:
  const std::array<size_t, 3> values_;
  mutable int left_;
  mutable size_t stage_ = 0;
  int refused_ = 0;
  std::mutex mutex_;
};

TEST(RunBudget, FollowsALimitThatChangesAgainWhileTheRunWaitsForRoom) {
  Tensor x(DType::float32, {kRows, kColumns});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = static_cast<float>(i % 13) / 100;
  const std::vector<Datum> feeds{x};
  const testing::HostProgram program(there_and_back());
  std::vector<Datum> expected(1);
  program.run(feeds, expected, {});
  int twice = 0;
  for (const std::array<size_t, 3> values :
       {std::array<size_t, 3>{10, 6, 8}, {10, 8, 4}, {12, 4, 20}, {6, 20, 4}, {20, 5, 10}, {20, 8, 20}})
    for (int at = 0; at < 2 * kLinks; ++at) {
      SCOPED_TRACE(std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + " values at " +
                   std::to_string(at));
      ChangingRoom room(values, at);
      exec::RunControl control;
      control.memory.pass = &room;
      exec::Frame frame(program.frames());
      frame.start(feeds, {}, control, {});
      EXPECT_TRUE(frame.advance());
      std::vector<Datum> outputs(1);
      frame.take_outputs(outputs);
      testing::expect_same_bits(outputs, expected);
      twice += room.stage() == 2;
    }
  EXPECT_GT(twice, 30);
}

/// Limits the arena to `before` bytes, and to `after` bytes from the `change`-th query on.
class ShrinkingRoom final : public exec::MemoryPass {
 public:
  ShrinkingRoom(size_t before, size_t after, int change, bool reorders = false)
      : before_(before), after_(after), reorders_(reorders), left_(change) {}
  bool may_reorder() const override { return reorders_; }
  size_t arena_capacity(size_t) const override { return has_shrunk() ? after_ : before_; }
  std::unique_lock<std::mutex> admit(size_t, size_t, const sharing::Interruption&, const std::function<size_t()>&) override {
    return std::unique_lock(mutex_);
  }
  std::optional<std::unique_lock<std::mutex>> admit_now(size_t) override { return std::unique_lock(mutex_); }
  void refuse(const exec::MemoryNeed&) const override { throw Error(ErrorCode::resource_exhausted, "too little room"); }
  uint64_t generation() const override { return --left_ < 0 ? 1 : 0; }  // called before every node, by several threads
  std::string spill_folder() const override { return {}; }
  bool has_shrunk() const { return left_ < 0; }

 private:
  const size_t before_, after_;
  const bool reorders_;
  mutable std::atomic<int> left_;
  std::mutex mutex_;
};

TEST(RunBudget, ALimitThatShrinksInFrontOfAnyNodeOfARandomGraphEndsNoRun) {
  int changed = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const std::vector<Datum> feeds = testing::random_feeds(seed);
    const testing::HostProgram program(testing::random_graph(seed, /*data_dependent=*/seed % 3 == 0));
    std::vector<Datum> expected(program.output_slots().size()), outputs(expected.size());
    program.run(feeds, expected, {});
    const size_t arena = exec::rounded(program.plans().bindings().latest_plan()->arena_bytes);
    const int steps = static_cast<int>(program.instructions().size());
    for (const bool reorders : {false, true})
      for (const size_t before : {arena, arena * 8 / 10 / 64 * 64})
        for (const size_t after : {size_t{0}, arena / 4 / 64 * 64, arena / 2 / 64 * 64})
          for (int at = 1; at < steps + 2; at += 1 + steps / 20) {
            SCOPED_TRACE(std::to_string(seed) + ", from " + std::to_string(before) + " to " + std::to_string(after) + " at " +
                         std::to_string(at));
            ShrinkingRoom room(before, after, at, reorders);
            exec::RunControl control;
            control.memory.pass = &room;
            exec::Frame frame(program.frames());
            try {
              frame.start(feeds, {}, control, {});
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();  // some graphs need more memory from the start
              continue;
            }
            const size_t held = frame.state().arena_bytes();
            EXPECT_TRUE(frame.advance());
            changed += frame.state().arena_bytes() < held;
            frame.take_outputs(outputs);
            testing::expect_same_bits(outputs, expected);
          }
  }
  EXPECT_GT(changed, 200);
}

TEST(RunBudget, ARunByReadinessGoesOnInOrderWhenTheLimitChanges) {
  ThreadPool pool(3);
  int changed = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const std::vector<Datum> feeds = testing::random_feeds(seed);
    const testing::HostProgram program(testing::random_graph(seed, /*data_dependent=*/false), {.parallel = true, .always_parallel = true});
    std::vector<Datum> expected(program.output_slots().size()), outputs(expected.size());
    program.run(feeds, expected, {});
    const size_t arena = program.plans().bindings().latest_plan()->arena_bytes;
    for (int at : {1, 2, 5, 12, 25, 40})
      for (size_t steps : {size_t{3}, SIZE_MAX}) {
        SCOPED_TRACE(std::to_string(seed) + ", from " + std::to_string(at) + ", by " + std::to_string(steps));
        ShrinkingRoom room(exec::rounded(arena), arena * 7 / 10 / 64 * 64, at);
        exec::RunControl control;
        control.threads.pool = &pool;
        control.memory.pass = &room;
        exec::Frame frame(program.frames());
        frame.start(feeds, {}, control, {});
        const bool by_readiness = frame.goes_by_readiness();
        EXPECT_TRUE(by_readiness || room.has_shrunk());
        try {
          while (!frame.advance(steps)) {
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();  // some graphs need more memory
          continue;
        }
        changed += by_readiness && !frame.goes_by_readiness();
        frame.take_outputs(outputs);
        testing::expect_same_bits(outputs, expected);
      }
  }
  EXPECT_GT(changed, 10);
}

}  // namespace
}  // namespace treadle
