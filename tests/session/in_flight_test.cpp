#include "session/in_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/session/faults.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

TEST(RunsInFlight, AnEntryThatOutlivesItsCallKeepsItsTag) {
  RunsInFlight runs;
  auto tag = std::make_unique<std::string>(64, 't');
  const std::shared_ptr<RunsInFlight::Entry> entry = runs.enter(7, *tag);
  tag->assign(64, 'x');
  tag.reset();
  const std::vector<UnfinishedRun> left = runs.close(/*timeout_ms=*/0);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].run_id, 7U);
  EXPECT_EQ(left[0].tag, std::string(64, 't'));
}

// The caller gets the error timed_out while the kernel still runs. Any thread that then destroys the session, even the caller's, waits for
// the kernel.
TEST(RunsInFlight, ASessionIsNotGoneBeforeTheRunThatItsOwnThreadHasLeft) {
  testing::register_fault_operators();
  testing::ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1}).node("Step", {"x"}, {"y"}, "step", "test.fault");
  onnx::AttributeDef id;
  id.name = "id";
  id.type = onnx::AttributeType::i;
  b.last_node().attributes.push_back(std::move(id));
  int64_t deadline_ms = 5;
  for (int done = 0; done < 2;) {
    const bool partial = done == 1;
    std::optional<Session> session(std::in_place, b.model());
    testing::Gate gate;
    std::atomic<bool> entered{false}, returned{false};
    testing::set_fault(0, [&] {
      entered = true;
      gate.wait();
      returned = true;
    });
    RunOptions options;
    options.deadline_ms = deadline_ms;
    const std::map<std::string, Datum> feeds{{"x", testing::floats({1, 2})}};
    try {
      if (partial)
        session->partial_run(feeds, nullptr, &options).advance();
      else
        session->run(feeds, {}, &options);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timed_out);
    }
    while (!entered && session->runs_in_flight() > 0) std::this_thread::yield();
    if (!entered) {  // on a busy machine, the deadline may pass before the kernel begins
      testing::set_fault(0, {});
      deadline_ms *= 4;
      ASSERT_LT(deadline_ms, 10'000);
      continue;
    }
    ++done;
    EXPECT_EQ(session->runs_in_flight(), 1U);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
    });
    session.reset();
    EXPECT_TRUE(returned) << "partial " << partial;
    gate.open();
    opener.join();
    while (!returned) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace treadle
