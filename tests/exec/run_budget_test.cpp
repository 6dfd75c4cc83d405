#include "exec/memory/run_budget.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "exec/memory/budget.h"
#include "exec/run/frame.h"
#include "tests/exec/graphs.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

constexpr int64_t kRows = 64, kColumns = 16;
constexpr size_t kValueBytes = size_t{kRows} * kColumns * 4;
constexpr int kLinks = 12;

// Values that are read again on the way back.
std::shared_ptr<Graph> there_and_back() {
  GraphBuilder b;
  std::vector<ValueId> values{b.input("x", DType::float32, {kRows, kColumns})};
  for (int i = 0; i < kLinks; ++i) values.push_back(b.node(i % 2 ? "Neg" : "Sigmoid", {values.back()}));
  for (size_t i = kLinks; i-- > 1;) values.push_back(b.node("Add", {values.back(), values[i]}));
  b.output(values.back(), "y");
  return b.finish();
}

/// Arenas of so many values: at first, from a node on, and when the run that follows has asked for room. Too small to be resized.
class ChangingRoom final : public exec::MemoryPass {
 public:
  ChangingRoom(std::array<size_t, 3> values, int first_change) : values_(values), left_(first_change) {}
  bool may_reorder() const override { return false; }
  size_t arena_capacity(size_t) const override { return values_[stage_] * kValueBytes; }
  std::unique_lock<std::mutex> admit(size_t, size_t, const exec::RunControl&) override {
    if (stage_ == 1) {
      stage_ = 2;
      throw Error(ErrorCode::resource_exhausted, "the limit is another one");
    }
    return std::unique_lock(mutex_);
  }
  std::optional<std::unique_lock<std::mutex>> admit_now(size_t) override { return std::unique_lock(mutex_); }
  void refuse(size_t, size_t, const exec::RunMemory&) const override { throw Error(ErrorCode::resource_exhausted, "too little room"); }
  uint64_t generation() const override {  // asked for before every node
    if (stage_ == 0 && left_-- == 0) stage_ = 1;
    return stage_;
  }
  std::string spill_folder() const override { return {}; }
  size_t stage() const { return stage_; }

 private:
  const std::array<size_t, 3> values_;
  mutable int left_;
  mutable size_t stage_ = 0;
  std::mutex mutex_;
};

TEST(RunBudget, FollowsALimitThatChangesAgainWhileTheRunWaitsForRoom) {
  Tensor x(DType::float32, {kRows, kColumns});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = static_cast<float>(i % 13) / 100;
  const std::vector<Datum> feeds{x};
  const exec::Program program(there_and_back());
  std::vector<Datum> expected(1);
  exec::run(program, feeds, expected, {});
  int twice = 0;
  for (const std::array<size_t, 3> values :
       {std::array<size_t, 3>{10, 6, 8}, {10, 8, 4}, {12, 4, 20}, {6, 20, 4}, {20, 5, 10}, {20, 8, 20}})
    for (int at = 0; at < 2 * kLinks; ++at) {
      SCOPED_TRACE(std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + " values at " +
                   std::to_string(at));
      ChangingRoom room(values, at);
      exec::RunControl control;
      control.pass = &room;
      exec::Frame frame(program);
      frame.start(feeds, {}, control, {});
      EXPECT_TRUE(frame.advance());
      std::vector<Datum> outputs(1);
      frame.take_outputs(outputs);
      testing::expect_same_bits(outputs, expected);
      twice += room.stage() == 2;
    }
  EXPECT_GT(twice, 30);
}

}  // namespace
}  // namespace treadle
