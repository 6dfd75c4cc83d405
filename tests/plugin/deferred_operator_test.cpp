// Tests operators that return TREADLE_PENDING: the executor must run other nodes meanwhile, and errors and cancellation must reach the
// caller.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/session/models.h"
#include "treadle/plugin.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using testing::floats;
using testing::ModelBuilder;
using testing::values_of;

// Counts the pending calls of the operator "Later", and completes them when the test says so.
struct Laters {
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::function<void(const treadle_host*, treadle_call*)> end;
  std::atomic<int> pending{0};
  std::promise<void> released;
  std::shared_future<void> release = released.get_future().share();

  void join() {
    std::vector<std::thread> begun;
    {
      std::lock_guard lock(mutex);  // a run that was abandoned may still start a thread
      begun.swap(threads);
    }
    for (std::thread& thread : begun) thread.join();
  }
};
Laters* laters = nullptr;

int same_type(void*, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs) {
  host->node_input_type(node, 0, outputs);
  return 1;
}

int add_one(const treadle_host* host, treadle_call* call) {
  treadle_tensor_view x;
  if (!host->call_input(call, 0, &x)) return 0;
  auto* y = static_cast<float*>(host->call_output(call, 0, x.dtype, x.dims, static_cast<size_t>(x.rank)));
  if (!y) return 0;
  for (int64_t i = 0; i < x.dims[0]; ++i) y[i] = static_cast<const float*>(x.data)[i] + 1;
  return 1;
}

treadle_operator operator_of(const char* name, int (*run)(void*, void*, const treadle_host*, treadle_call*)) {
  treadle_operator op{};
  op.size = sizeof op;
  op.domain = "deferred.test";
  op.op_type = name;
  op.min_inputs = op.max_inputs = op.num_outputs = 1;
  op.infer = same_type;
  op.run = run;
  return op;
}

class DeferredOperator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const treadle_operator later = operator_of("Later", [](void*, void*, const treadle_host* host, treadle_call* call) {
      ++laters->pending;
      std::lock_guard lock(laters->mutex);
      laters->threads.emplace_back([host, call] { laters->end(host, call); });
      return TREADLE_PENDING;
    });
    // Completes the call on another thread before it returns TREADLE_PENDING.
    const treadle_operator at_once = operator_of("AtOnce", [](void*, void*, const treadle_host* host, treadle_call* call) {
      std::thread([&] { host->call_complete(call, add_one(host, call), ""); }).join();
      return TREADLE_PENDING;
    });
    // Completes all pending calls.
    const treadle_operator release = operator_of("Release", [](void*, void*, const treadle_host* host, treadle_call* call) {
      laters->released.set_value();
      return add_one(host, call);
    });
    for (const treadle_operator* op : {&later, &at_once, &release}) ASSERT_EQ(treadle_register_operator(op), nullptr);
  }
  void SetUp() override { laters = &laters_; }
  void TearDown() override { laters_.join(); }

  static Session session(const Model& model, bool parallel = true, const char* device = "") {
    SessionOptions options;
    options.device = device;
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    options.intra_op_num_threads = options.inter_op_num_threads = parallel ? 2 : 1;
    if (parallel) options.execution_mode = ExecutionMode::parallel;
    return Session(model, options);
  }

  Laters laters_;
};

// Makes a model with eight outputs y_i = -Later(x), which wait for the node "release". Two threads can only run it if pending calls do not
// block them.
Model eight_and_a_release() {
  ModelBuilder b;
  b.input("x", {2});
  for (int i = 0; i < 8; ++i) {
    const std::string n = std::to_string(i);
    b.node("Later", {"x"}, {"l" + n}, "later" + n, "deferred.test").node("Neg", {"l" + n}, {"y" + n}, "neg" + n).output("y" + n, {2});
  }
  b.node("Release", {"x"}, {"r"}, "release", "deferred.test").output("r", {2});
  return b.model();
}

TEST_F(DeferredOperator, OtherNodesRunWhileItIsPending) {
  laters_.end = [this](const treadle_host* host, treadle_call* call) {
    laters_.release.wait();
    host->call_complete(call, add_one(host, call), "");
  };
  Session parallel = session(eight_and_a_release());
  for (int round = 0; round < 5; ++round) {
    laters_.released = {};
    laters_.release = laters_.released.get_future().share();
    const std::vector<Datum> outputs = parallel.run({{"x", floats({1, 2})}});
    for (int i = 0; i < 8; ++i) EXPECT_EQ(values_of(outputs[static_cast<size_t>(i)]), (std::vector<float>{-2, -3}));
    laters_.join();
  }
  EXPECT_EQ(laters_.pending, 40);
}

Model chain_of(const std::string& op) {
  ModelBuilder b;
  b.input("x", {2}).output("y", {2});
  b.node(op, {"x"}, {"a"}, "first", "deferred.test").node("Neg", {"a"}, {"b"}, "middle").node(op, {"b"}, {"y"}, "last", "deferred.test");
  return b.model();
}

TEST_F(DeferredOperator, EveryExecutorWaitsForWhatItNeeds) {
  laters_.end = [](const treadle_host* host, treadle_call* call) { host->call_complete(call, add_one(host, call), ""); };
  for (const char* op : {"Later", "AtOnce"})
    for (bool parallel : {true, false}) {
      Session made = session(chain_of(op), parallel);
      for (int round = 0; round < 20; ++round)
        EXPECT_EQ(values_of(made.run({{"x", floats({1, 2})}})[0]), (std::vector<float>{-1, -2})) << op << parallel;
    }
}

TEST_F(DeferredOperator, ItsErrorNamesTheNodeAndTheSessionStaysUsable) {
  for (bool parallel : {true, false}) {
    Session made = session(chain_of("Later"), parallel);
    for (int round = 0; round < 10; ++round) {
      laters_.end = [](const treadle_host* host, treadle_call* call) { host->call_complete(call, 0, "the cable is out"); };
      try {
        made.run({{"x", floats({1, 2})}});
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("the cable is out"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("first"), std::string::npos) << error.what();
      }
      laters_.join();
      // The operator completes its call without having made the output.
      laters_.end = [](const treadle_host* host, treadle_call* call) { host->call_complete(call, 1, ""); };
      EXPECT_THROW(made.run({{"x", floats({1, 2})}}), Error);
      laters_.join();
      laters_.end = [](const treadle_host* host, treadle_call* call) { host->call_complete(call, add_one(host, call), ""); };
      EXPECT_EQ(values_of(made.run({{"x", floats({1, 2})}})[0]), (std::vector<float>{-1, -2}));
      laters_.join();
    }
  }
}

void at_once(const treadle_host* host, treadle_call* call) { host->call_complete(call, add_one(host, call), ""); }
void until_told(const treadle_host* host, treadle_call* call) {
  while (!host->call_cancelled(call)) std::this_thread::yield();
  at_once(host, call);
}

TEST_F(DeferredOperator, ACancelledRunTellsItAndEndsWithIt) {
  for (auto [parallel, device] : {std::pair{true, ""}, {false, ""}, {false, "sim"}}) {
    laters_.end = until_told;
    laters_.pending = 0;
    Session made = session(chain_of("Later"), parallel, device);
    RunOptions options;
    auto run = std::async(std::launch::async, [&] { return made.run({{"x", floats({1, 2})}}, {}, &options); });
    while (laters_.pending == 0) std::this_thread::yield();
    options.terminate = true;
    try {
      run.get();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
    }
    laters_.join();
    laters_.end = at_once;
    EXPECT_EQ(values_of(made.run({{"x", floats({1, 2})}})[0]), (std::vector<float>{-1, -2}));
    laters_.join();
  }
}

// When the operator asks about the run, the caller has returned and the caller's options do not exist any more.
TEST_F(DeferredOperator, ARunThatPassesItsDeadlineTellsItAndDoesNotWaitForIt) {
  for (auto [parallel, device] : {std::pair{true, ""}, {false, ""}, {false, "sim"}}) {
    std::promise<void> caller_gone;
    auto gone = caller_gone.get_future().share();
    laters_.end = [gone](const treadle_host* host, treadle_call* call) {
      gone.wait();
      until_told(host, call);
    };
    Session made = session(chain_of("Later"), parallel, device);
    try {
      auto options = std::make_unique<RunOptions>();
      options->deadline_ms = 20;
      options->cancel_token.emplace();
      made.run({{"x", floats({1, 2})}}, {}, options.get());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timed_out);
    }
    EXPECT_EQ(made.runs_in_flight(), 1U);
    caller_gone.set_value();
    laters_.join();
    while (made.runs_in_flight() > 0) std::this_thread::yield();
    laters_.end = at_once;
    EXPECT_EQ(values_of(made.run({{"x", floats({1, 2})}})[0]), (std::vector<float>{-1, -2}));
    laters_.join();
  }
}

}  // namespace
}  // namespace treadle
