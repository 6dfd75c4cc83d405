// Random runs with faults: no error is lost, nothing leaks or blocks, and the session is as usable afterwards as before. Sessions run on
// the host (sequential and parallel, whole and partial runs), on a simulated device and on several. tests/train/trainer_faults_test.cpp
// does the same for trainers. TREADLE_FAULT_RUNS sets the number of runs, TREADLE_FAULT_SEED the first seed; scripts/fault_campaign runs
// 10,000.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <new>
#include <optional>
#include <thread>

#include "tests/exec/allocation_counter.h"
#include "tests/session/faults.h"

namespace treadle::testing {
namespace {

using Feeds = std::map<std::string, Datum>;

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

/// A run's result, as its caller sees it.
struct Outcome {
  ErrorCode code = ErrorCode::ok;
  std::string what;
  std::vector<Datum> outputs;
};

enum class Fault {
  none,
  allocator,     // the session's allocator fails once, or always from then on
  operator_new,  // the heap fails once, or always from then on
  kernel_error,  // a kernel throws Error
  kernel_bad_alloc,
  kernel_foreign,  // a kernel throws something not derived from std::exception
  hang,            // a kernel does not return, and the run has a deadline
  late,            // a kernel returns after the deadline
  cancel,          // a token cancels the run while a node runs
  terminate,
  close,    // the session is closed by another thread while a node runs
  destroy,  // the session is destroyed by another thread while a node runs
  abandon,  // a partial run is destroyed before its end
  count,
};

class Campaign {
 public:
  explicit Campaign(uint32_t seed) : seed_(seed), random_(seed), partial_(random_() % 3 == 0), model_(random_, partial_) { make_session(); }

  ~Campaign() {
    set_fault(-1, {});
    session_.reset();
    EXPECT_EQ(allocator_->live(), 0) << "blocks of the session live longer than it, seed " << seed_ << ", last fault " << last_fault_;
    EXPECT_EQ(feeds_alive_.load(), 0) << "feeds are still held, seed " << seed_ << ", last fault " << last_fault_;
  }

  void run_once() {
    const auto fault = static_cast<Fault>(random_() % static_cast<unsigned>(Fault::count));
    last_fault_ = static_cast<int>(fault);
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", fault " + std::to_string(static_cast<int>(fault)));
    const int64_t node = model_.num_steps > 0 ? static_cast<int64_t>(random_() % static_cast<uint32_t>(model_.num_steps)) : -1;
    switch (fault) {
      case Fault::allocator: fail_allocations(/*heap=*/false); break;
      case Fault::operator_new: fail_allocations(/*heap=*/true); break;
      case Fault::kernel_error:
        set_fault(node, [] { throw Error(ErrorCode::invalid_argument, "a kernel that fails"); });
        expect_failure(run(), ErrorCode::invalid_argument, "a kernel that fails");
        break;
      case Fault::kernel_bad_alloc:
        set_fault(node, [] { throw std::bad_alloc(); });
        expect_failure(run(), ErrorCode::resource_exhausted, "out of memory");
        break;
      case Fault::kernel_foreign: {
        set_fault(node, [] { throw 42; });
        if (node < 0) break;
        bool caught = false;
        try {
          run();
        } catch (int thrown) {
          caught = thrown == 42;
        }
        EXPECT_TRUE(caught);
        break;
      }
      case Fault::hang: hang(node); break;
      case Fault::late: {
        RunOptions options;
        options.deadline_ms = 2;
        const auto past = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
        set_fault(node, [past] { std::this_thread::sleep_until(past); });
        Outcome outcome = run(&options);
        if (outcome.code == ErrorCode::ok) {
          check(outcome);  // the node that was late was the last one, or the node with the fault did not run
        } else {
          EXPECT_EQ(outcome.code, ErrorCode::timed_out) << outcome.what;
        }
        break;
      }
      case Fault::cancel: {
        RunOptions options;
        options.cancel_token.emplace();
        set_fault(node, [token = *options.cancel_token] { token.cancel(); });
        expect_end(run(&options), ErrorCode::cancelled);
        break;
      }
      case Fault::terminate: {
        RunOptions options;
        set_fault(node, [&options] { options.terminate = true; });
        expect_end(run(&options), ErrorCode::cancelled);
        break;
      }
      case Fault::abandon: abandon(); break;
      case Fault::close:
      case Fault::destroy: end_session(node, fault == Fault::destroy); break;
      default: break;
    }
    set_fault(-1, {});
    SCOPED_TRACE("the run after it");
    Outcome after = run();
    ASSERT_EQ(after.code, ErrorCode::ok) << after.what;
    check(after);
  }

 private:
  void make_session() {
    SessionOptions options;
    options.allocator = allocator_;
    if (random_() % 2) options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    switch (random_() % 3) {
      case 0: options.intra_op_num_threads = options.inter_op_num_threads = 1; break;
      case 1: options.intra_op_num_threads = 2; break;
      default: options.intra_op_num_threads = 2; options.execution_mode = ExecutionMode::parallel;
    }
    const unsigned where = random_() % 4;
    if (where == 2) options.device = "sim";
    if (where == 3)
      for (const onnx::NodeDef& node : model_.builder.def().graph.nodes)
        for (const auto& [key, group] : node.metadata_props) options.group2ctx[group] = group == "left" ? "sim:fault-a" : "sim:fault-b";
    placed_ = where == 2 || !options.group2ctx.empty();
    if (placed_) {
      options.compute_streams = 1 + static_cast<int>(random_() % 2);
      if (random_() % 2) options.config["treadle.sim.max_delay_us"] = "20";
    }
    session_.emplace(model_.builder.model(), options);
  }

  // Memory that the test owns, so that it sees when the library frees it.
  Datum feed() {
    auto values = std::make_unique<std::vector<float>>();
    const size_t count = 1 + random_() % 40;
    for (size_t i = 0; i < count; ++i) values->push_back(static_cast<float>(static_cast<int>(random_() % 7) - 3));
    x_ = *values;
    ++feeds_alive_;
    float* data = values->data();
    auto storage = Storage::borrow(data, count * sizeof(float), [this, owned = values.release()] {
      delete owned;
      --feeds_alive_;
    });
    return Tensor(DType::float32, Shape{static_cast<int64_t>(count)}, std::move(storage));
  }

  Outcome run(const RunOptions* options = nullptr) { return run(Feeds{{"x", feed()}}, options); }

  Outcome run(const Feeds& feeds, const RunOptions* options) {
    Outcome outcome;
    try {
      outcome.outputs = partial_ ? partial_outputs(feeds, options) : session_->run(feeds, {}, options);
    } catch (const Error& error) {
      outcome.code = error.code();
      keep_text(outcome, error);
    } catch (const std::bad_alloc& error) {
      outcome.code = ErrorCode::resource_exhausted;  // there was not even memory for an Error
      keep_text(outcome, error);
    }
    return outcome;
  }

  static void keep_text(Outcome& outcome, const std::exception& error) {
    try {
      outcome.what = error.what();
    } catch (const std::bad_alloc&) {  // the heap still fails
    }
  }

  // Runs a partial run to the end: in one call, a few nodes at a time, or each part on another thread.
  std::vector<Datum> partial_outputs(const Feeds& feeds, const RunOptions* options) {
    PartialRun partial = session_->partial_run(feeds, nullptr, options);
    const unsigned way = heap_fails_ ? random_() % 2 : random_() % 3;
    auto part = [&](auto&& go_on) {
      if (way == 2)
        std::async(std::launch::async, go_on).get();
      else
        go_on();
    };
    for (;;) {
      part([&] {
        if (way == 0)
          partial.advance();
        else
          while (partial.advance_steps(1 + random_() % 3) > 0) {
          }
      });
      if (!partial.at_yield()) break;
      part([&] {
        std::vector<Datum> values;
        for (auto& [name, value] : partial.yielded()) values.push_back(value);
        partial.resume(values);
      });
    }
    return partial.outputs();
  }

  void abandon() {
    PartialRun partial = session_->partial_run({{"x", feed()}});
    if (partial.steps_left() > 0) partial.advance_steps(random_() % (partial.steps_left() + 1));
    if (random_() % 2) {
      Outcome beside = run();
      EXPECT_EQ(beside.code, ErrorCode::ok) << beside.what;
      if (beside.code == ErrorCode::ok) check(beside);
    }
  }

  void check(const Outcome& outcome) {
    const auto expected = model_.expected(x_);
    ASSERT_EQ(outcome.outputs.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_EQ(values_of(outcome.outputs[k]), expected[k]) << model_.output_names[k];
  }

  void expect_failure(const Outcome& outcome, ErrorCode code, const std::string& text) {
    EXPECT_EQ(outcome.code, model_.num_steps > 0 ? code : ErrorCode::ok);
    if (outcome.code != ErrorCode::ok) {
      EXPECT_NE(outcome.what.find(text), std::string::npos) << outcome.what;
    }
  }

  // Expects this error, or success if the node with the fault was the last one, after which nothing is cancelled.
  void expect_end(const Outcome& outcome, ErrorCode code) {
    if (outcome.code == ErrorCode::ok) {
      check(outcome);
    } else {
      EXPECT_EQ(outcome.code, code) << outcome.what;
    }
  }

  // Fails each allocation of a run in turn, until a run needs no more allocations.
  void fail_allocations(bool heap) {
    const bool all = random_() % 2;
    Feeds feeds{{"x", feed()}};
    for (int64_t at = 0; at < 400; ++at) {
      Outcome outcome;
      if (heap) {
        heap_fails_ = true;
        FailingNew failing(at, all);
        outcome = run(feeds, nullptr);
      } else {
        allocator_->fail(at, all);
        outcome = run(feeds, nullptr);
        allocator_->work();
      }
      heap_fails_ = false;
      SCOPED_TRACE("allocation " + std::to_string(at));
      if (outcome.code == ErrorCode::ok) {
        check(outcome);
        // Frames keep memory, so later runs need fewer allocations. Continues until a run was certainly not affected.
        if (at > 60) break;
        continue;
      }
      EXPECT_EQ(outcome.code, ErrorCode::resource_exhausted) << outcome.what;
    }
  }

  void hang(int64_t node) {
    auto gate = std::make_shared<Gate>();
    auto reached = std::make_shared<std::atomic<bool>>(false);
    set_fault(node, [gate, reached] {
      *reached = true;
      gate->wait();
    });
    RunOptions options;
    options.deadline_ms = 3;
    Outcome outcome = run(&options);
    if (outcome.code == ErrorCode::ok) {
      check(outcome);
    } else {
      EXPECT_EQ(outcome.code, ErrorCode::timed_out) << outcome.what;
    }
    set_fault(-1, {});
    if (*reached) {
      EXPECT_EQ(outcome.code, ErrorCode::timed_out);
      EXPECT_GE(session_->runs_in_flight(), 1U) << "the run that hangs is still there";
      beside_the_hanging_run();
    }
    if (random_() % 4 == 0) {
      std::thread destroyer([&] { session_.reset(); });
      gate->open();
      destroyer.join();
      return make_session();
    }
    gate->open();
    while (session_->runs_in_flight() > 0) std::this_thread::yield();
  }

  // Runs once more while another run hangs. On devices it cannot finish before the other, so it
  // must end by a deadline or by cancellation.
  void beside_the_hanging_run() {
    SCOPED_TRACE("beside the run that hangs");
    if (!placed_ || partial_) {
      Outcome beside = run();
      EXPECT_EQ(beside.code, ErrorCode::ok) << beside.what;
      if (beside.code == ErrorCode::ok) check(beside);
      return;
    }
    RunOptions options;
    if (random_() % 2) {
      options.deadline_ms = 2;
      expect_end(run(&options), ErrorCode::timed_out);
    } else {
      auto beside = std::async(std::launch::async, [&, feeds = Feeds{{"x", feed()}}] { return run(feeds, &options); });
      options.terminate = true;
      expect_end(beside.get(), ErrorCode::cancelled);
    }
  }

  void end_session(int64_t node, bool destroy) {
    Gate reached, go_on;
    set_fault(node, [&] {
      reached.open();
      go_on.wait();
    });
    Outcome outcome;
    Feeds feeds{{"x", feed()}};
    std::thread client([&] {
      outcome = run(feeds, nullptr);
      reached.open();  // opens the gate even if no node waits at it
    });
    reached.wait();
    std::thread ender([&] {
      if (destroy)
        session_.reset();
      else
        session_->close();
    });
    if (!destroy)
      while (!session_->closed()) std::this_thread::yield();
    go_on.open();
    ender.join();
    client.join();
    expect_end(outcome, ErrorCode::cancelled);
    feeds.clear();
    outcome.outputs.clear();
    session_.reset();
    make_session();
  }

  const uint32_t seed_;
  std::mt19937 random_;
  std::atomic<int64_t> feeds_alive_{0};
  std::shared_ptr<FaultyAllocator> allocator_ = std::make_shared<FaultyAllocator>();
  const bool partial_;
  bool placed_ = false;      // the session runs on devices
  bool heap_fails_ = false;  // operator new fails as well
  int last_fault_ = 0;
  RandomModel model_;
  std::vector<float> x_;  // elements of the last feed
  std::optional<Session> session_;
};

TEST(FaultCampaign, RandomFaultsLoseNoErrorAndLeaveTheSessionUsable) {
  const int64_t runs = setting("TREADLE_FAULT_RUNS", 300), first = setting("TREADLE_FAULT_SEED", 1);
  constexpr int64_t kRunsPerModel = 12;
  for (int64_t m = 0; m * kRunsPerModel < runs; ++m) {
    Campaign campaign(static_cast<uint32_t>(first + m));
    for (int64_t i = 0; i < kRunsPerModel; ++i) {
      campaign.run_once();
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace treadle::testing
