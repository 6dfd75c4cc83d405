// Tests the rounds of loops on devices: later rounds are issued while earlier ones are under way, unless the host reads their results.
#include "exec/placed/placed_rounds.h"

#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using exec::PlacedRounds;
using testing::GraphBuilder;

Tensor filled(const Shape& shape, float value) {
  Tensor tensor(DType::float32, shape);
  for (float& element : tensor.span<float>()) element = value;
  return tensor;
}

/// A body that gets a round's number, a condition, a matrix and a vector.
class RoundsTest : public ::testing::Test {
 protected:
  RoundsTest() {
    trip_ = b_.input("trip", DType::int64, {});
    condition_ = b_.input("condition", DType::boolean, {});
    x_ = b_.input("x", DType::float32, {b_.symbol("n"), 8});
    sum_ = b_.input("sum", DType::float32, {8});
  }
  // x' = -(x + trip), sum' = sum + the columns' sums of x'. Products of x' make some work in between.
  void finish_values() {
    const ValueId number = b_.node("Cast", {trip_}, {{"to", int64_t{1}}});
    const ValueId negated = b_.node("Neg", {b_.node("Add", {x_, number})});
    const ValueId columns =
        b_.node("ReduceSum", {b_.node("Abs", {b_.node("Neg", {negated})}), b_.ints("axes", {0})}, {{"keepdims", int64_t{0}}});
    b_.output(negated, "x_next");
    b_.output(b_.node("Add", {sum_, columns}), "sum_next");
  }
  void make() {
    program_ = std::make_unique<testing::HostProgram>(b_.finish(), exec::ProgramOptions{.parallel = true});
    plan_ = exec::plan_streams(*program_, exec::place_instructions(*program_, {.default_device = 1}), 2, {.compute_streams = 2});
    schedule_ = std::make_unique<exec::PlacedSchedule>(program_->plans(), program_->frames(), devices_, plan_, nullptr);
  }
  /// Runs rounds of the body, and checks their results.
  void run(PlacedRounds& rounds, int64_t num_rounds, size_t looked_at, int64_t rows = 3) const {
    std::vector<Datum> carried{filled({rows, 8}, 1), filled({8}, 0)}, results(3);
    float x = 1, sum = 0;
    for (int64_t trip = 0; trip < num_rounds; ++trip) {
      const std::vector<Datum> feeds{Tensor::scalar(trip), Tensor::scalar(true), carried[0], carried[1]};
      rounds.run(feeds, results, {}, {}, looked_at);
      carried = {results[1], results[2]};
      x = -(x + static_cast<float>(trip));
      sum += static_cast<float>(rows) * std::abs(x);
      if (looked_at == 0) {
        EXPECT_TRUE(*results[0].tensor().data<bool>());
      }
    }
    rounds.finish();
    const Tensor x_made = carried[0].tensor().clone(), sum_made = carried[1].tensor().clone();
    for (const float element : x_made.span<float>()) EXPECT_EQ(element, x);
    for (const float element : sum_made.span<float>()) EXPECT_EQ(element, sum);
  }

  GraphBuilder b_;
  ValueId trip_, condition_, x_, sum_;
  std::unique_ptr<testing::HostProgram> program_;
  std::vector<std::shared_ptr<Device>> devices_{cpu_device(), SimDevice::create({.max_delay_us = 60})};
  exec::StreamPlan plan_;
  std::unique_ptr<exec::PlacedSchedule> schedule_;
};

TEST_F(RoundsTest, AreIssuedAheadIfTheConditionIsPassedOn) {
  b_.output(condition_, "go_on");
  finish_values();
  make();
  PlacedRounds rounds(*schedule_);
  run(rounds, 12, /*looked_at=*/0);
  EXPECT_EQ(rounds.num_issued_ahead(), 11);
  run(rounds, 5, /*looked_at=*/0, /*rows=*/7);  // larger arenas
  run(rounds, 5, /*looked_at=*/0, /*rows=*/2);
  EXPECT_EQ(rounds.num_issued_ahead(), 19);
}

TEST_F(RoundsTest, WaitForAConditionThatADeviceComputes) {
  b_.output(b_.node("Less", {b_.node("ReduceMin", {x_}, {{"keepdims", int64_t{0}}}), b_.constant("most", Tensor::scalar(1e6F))}), "go_on");
  finish_values();
  make();
  PlacedRounds rounds(*schedule_);
  run(rounds, 6, /*looked_at=*/0);
  EXPECT_EQ(rounds.num_issued_ahead(), 0);
}

TEST_F(RoundsTest, AnErrorOfARoundComesOutAndLeavesThemUsable) {
  const ValueId table = b_.constant("table", filled({4}, 0));
  b_.output(condition_, "go_on");
  finish_values();
  b_.output(b_.node("Gather", {table, trip_}), "looked_up");  // fails from round 4 on
  make();
  PlacedRounds rounds(*schedule_);
  const auto run_some = [&](int64_t num_rounds) {
    std::vector<Datum> carried{filled({3, 8}, 1), filled({8}, 0)}, results(4);
    for (int64_t trip = 0; trip < num_rounds; ++trip) {
      rounds.run(std::vector<Datum>{Tensor::scalar(trip), Tensor::scalar(true), carried[0], carried[1]}, results, {}, {}, 0);
      carried = {results[1], results[2]};
    }
    rounds.finish();
  };
  run_some(4);
  try {
    run_some(12);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Gather"), std::string::npos) << error.what();
  }
  rounds.clear();
  run_some(4);
}

}  // namespace
}  // namespace treadle
