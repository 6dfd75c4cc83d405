// The parallel executor against the sequential one, bit by bit, over random graphs; its memory, its errors, its limits.
#include "exec/run/parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "core/thread_pool.h"
#include "exec/schedule/parallel_plan.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using exec::Program;
using exec::ProgramOptions;
using testing::expect_same_bits;
using testing::GraphBuilder;
using testing::random_feeds;
using testing::random_graph;

const ProgramOptions kParallel{.parallel = true, .always_parallel = true};

std::vector<Datum> run(const Program& program, const std::vector<Datum>& feeds, const exec::RunControl& control = {}) {
  std::vector<Datum> outputs(program.output_slots().size());
  exec::run(program, feeds, outputs, control);
  return outputs;
}

TEST(Parallel, RandomGraphsGiveTheBitsOfTheSequentialExecutor) {
  ThreadPool pool(4);
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Program sequential(random_graph(seed), ProgramOptions{.reuse_memory = false}), parallel(random_graph(seed), kParallel);
    ASSERT_NE(parallel.parallel(), nullptr);
    std::vector<Datum> feeds = random_feeds(seed);
    std::vector<Datum> expected = run(sequential, feeds);
    exec::RunControl control;
    control.pool = &pool;
    for (int threads : {0, 2, 4, 2}) {
      control.inter_op_threads = threads;
      expect_same_bits(run(parallel, feeds, control), expected);
    }
    // In order, over memory that was planned for any order.
    expect_same_bits(run(parallel, feeds), expected);
  }
}

TEST(Parallel, BuffersOfInstructionsThatMayRunTogetherDoNotOverlap) {
  for (uint32_t seed = 100; seed < 120; ++seed) {
    Program program(random_graph(seed), kParallel);
    run(program, random_feeds(seed));
    auto plan = program.bindings().latest_plan();
    const exec::ParallelPlan& order = *program.parallel();
    // The truth by brute force: everything that touches one of the buffers comes before everything that touches the other.
    auto all_before = [&](size_t a, size_t b) {
      for (uint32_t i = order.first_access[a]; i < order.first_access[a + 1]; ++i)
        for (uint32_t j = order.first_access[b]; j < order.first_access[b + 1]; ++j)
          if (!order.reach.before(order.accesses[i], order.accesses[j])) return false;
      return true;
    };
    int sharing = 0;
    for (size_t a = 0; a < plan->sizes.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (plan->sizes[a] == 0 || plan->sizes[b] == 0) continue;
        bool overlap = plan->offsets[a] < plan->offsets[b] + plan->sizes[b] && plan->offsets[b] < plan->offsets[a] + plan->sizes[a];
        if (!overlap) continue;
        ++sharing;
        EXPECT_TRUE(all_before(a, b) || all_before(b, a)) << a << " and " << b;
      }
    }
    EXPECT_GT(sharing, 0);
  }
}

// Two expensive branches of products, joined at the end.
std::shared_ptr<Graph> branches(int count, int depth, bool failing = false) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {64, 64}), index = b.input("index", DType::int64, {1});
  ValueId sum = x;
  for (int i = 0; i < count; ++i) {
    ValueId y = x;
    for (int k = 0; k < depth; ++k) {
      y = b.node("MatMul", {y, x}, {}, "product" + std::to_string(i) + "_" + std::to_string(k));
      if (failing && i == 1 && k == 1) y = b.node("Gather", {y, index}, {{"axis", int64_t{0}}}, "gathering");
    }
    sum = b.node("Add", {sum, y});
  }
  b.output(sum, "y");
  return b.finish();
}

// Notes on which threads nodes run and how many at once.
class Counter final : public exec::Observer {
 public:
  void ready(const exec::Frame&, const exec::Instruction&) override {}
  void before(const exec::Frame&, const exec::Instruction&) override {
    int now = ++running;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  }
  void after(const exec::Frame&, const exec::Instruction&) override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // room for the other threads to come in
    --running;
  }
  std::atomic<int> running{0}, most{0};
  std::mutex mutex;
  std::set<std::thread::id> threads;
};

std::vector<Datum> branch_feeds(int64_t index = 0) {
  Tensor x(DType::float32, {64, 64});
  for (int64_t k = 0; k < x.num_elements(); ++k) x.data<float>()[k] = static_cast<float>(k % 7) * 0.01F;
  return {x, Tensor::vector<int64_t>(std::vector<int64_t>{index})};
}

TEST(Parallel, IndependentExpensiveNodesRunAtOnceUpToTheLimit) {
  ThreadPool pool(4);
  Program program(branches(6, 6), ProgramOptions{.parallel = true});
  std::vector<Datum> expected = run(Program(branches(6, 6)), branch_feeds());
  for (int limit : {1, 2, 3}) {
    Counter counter;
    exec::RunControl control;
    control.pool = &pool;
    control.observer = &counter;
    control.inter_op_threads = limit;
    expect_same_bits(run(program, branch_feeds(), control), expected);
    EXPECT_LE(counter.most, limit);
    if (limit == 1) {
      EXPECT_EQ(counter.threads, std::set<std::thread::id>{std::this_thread::get_id()});
    }
    if (limit == 3) {
      EXPECT_GE(counter.most, 2);
    }
  }
}

TEST(Parallel, AChainIsNotWorthIt) {
  Program chain(branches(1, 6), ProgramOptions{.parallel = true}), wide(branches(2, 6), ProgramOptions{.parallel = true});
  ThreadPool pool(2);
  exec::RunControl control;
  control.pool = &pool;
  auto worth = [&](const Program& program) {
    exec::Frame frame(program);
    frame.start(branch_feeds(), {}, control, {});
    return exec::worth_parallel(program, frame.binding(), control);
  };
  EXPECT_FALSE(worth(chain));
  EXPECT_TRUE(worth(wide));
  control.inter_op_threads = 1;
  EXPECT_FALSE(worth(wide));
}

TEST(Parallel, TheFirstErrorWinsAndTheProgramStaysUsable) {
  ThreadPool pool(3);
  Program program(branches(4, 4, /*failing=*/true), kParallel);
  exec::RunControl control;
  control.pool = &pool;
  for (int round = 0; round < 20; ++round) {
    try {
      run(program, branch_feeds(1000), control);
      FAIL() << "the index is outside";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\"gathering\""), std::string::npos) << error.what();
    }
    EXPECT_EQ(run(program, branch_feeds(3), control).size(), 1U);
  }
}

TEST(Parallel, CancelledRunsStop) {
  ThreadPool pool(2);
  Program program(branches(4, 4), kParallel);
  std::atomic<bool> cancel{true};
  exec::RunControl control;
  control.pool = &pool;
  control.cancel = &cancel;
  EXPECT_THROW(run(program, branch_feeds(), control), Error);
  cancel = false;
  EXPECT_EQ(run(program, branch_feeds(), control).size(), 1U);
}

TEST(Parallel, ManyThreadsRunOneProgramAtOnceOnOnePool) {
  ThreadPool pool(3);
  Program program(random_graph(7), kParallel);
  std::vector<Datum> feeds = random_feeds(7), expected = run(Program(random_graph(7)), feeds);
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c)
    clients.emplace_back([&] {
      exec::RunControl control;
      control.pool = &pool;
      for (int i = 0; i < 20; ++i) expect_same_bits(run(program, feeds, control), expected);
    });
  for (std::thread& client : clients) client.join();
}

TEST(Parallel, AYieldIsRunInOrder) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  b.output(b.nodes("Yield", {x}, 1, {}, "yield", "treadle")[0], "y");
  Program program(b.finish(), kParallel);
  EXPECT_EQ(program.parallel(), nullptr);
}

}  // namespace
}  // namespace treadle
