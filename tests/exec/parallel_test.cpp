// The parallel executor: its results on random graphs equal the sequential one's bit by bit. Also its memory, errors and limits.
#include "exec/run/parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "core/threads/thread_pool.h"
#include "exec/program/parallel_plan.h"
#include "exec/run/frame.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "tests/session/faults.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using Program = testing::HostProgram;
using exec::ProgramOptions;
using testing::expect_same_bits;
using testing::GraphBuilder;
using testing::random_feeds;
using testing::random_graph;

const ProgramOptions kParallel{.parallel = true, .always_parallel = true};

std::vector<Datum> run(const Program& program, const std::vector<Datum>& feeds, const exec::RunControl& control = {}) {
  std::vector<Datum> outputs(program.output_slots().size());
  program.run(feeds, outputs, control);
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
    control.threads.pool = &pool;
    for (int threads : {0, 2, 4, 2}) {
      control.threads.inter_op = threads;
      expect_same_bits(run(parallel, feeds, control), expected);
    }
    // Compares with a sequential run whose memory was planned for any order of the nodes.
    expect_same_bits(run(parallel, feeds), expected);
  }
}

TEST(Parallel, BuffersOfInstructionsThatMayRunTogetherDoNotOverlap) {
  for (uint32_t seed = 100; seed < 120; ++seed) {
    Program program(random_graph(seed), kParallel);
    run(program, random_feeds(seed));
    auto plan = program.plans().bindings().latest_plan();
    const exec::ParallelPlan& order = *program.parallel();
    // Returns true if every access to one buffer comes before every access to the other; only then may they share bytes. The test checks
    // all pairs.
    auto all_before = [&](exec::BufferId a, exec::BufferId b) {
      for (uint32_t i = order.first_access[index_of(a)]; i < order.first_access[index_of(a) + 1]; ++i)
        for (uint32_t j = order.first_access[index_of(b)]; j < order.first_access[index_of(b) + 1]; ++j)
          if (!order.reach.before(order.accesses[i], order.accesses[j])) return false;
      return true;
    };
    int sharing = 0;
    for (exec::BufferId a : plan->sizes.ids()) {
      for (exec::BufferId b : IdRange(exec::BufferId{}, a)) {
        if (plan->sizes[a] == 0 || plan->sizes[b] == 0) continue;
        bool overlap = plan->offsets[a] < plan->offsets[b] + plan->sizes[b] && plan->offsets[b] < plan->offsets[a] + plan->sizes[a];
        if (!overlap) continue;
        ++sharing;
        EXPECT_TRUE(all_before(a, b) || all_before(b, a)) << index_of(a) << " and " << index_of(b);
      }
    }
    EXPECT_GT(sharing, 0);
  }
}

// Makes branches of expensive matrix products that are joined at the end.
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

// Records the threads that run nodes, and how many nodes run at the same time.
class Counter final : public exec::Observer {
 public:
  void ready(const exec::RunState&, const exec::Instruction&) override {}
  void before(const exec::RunState&, const exec::Instruction&) override {
    int now = ++running;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  }
  void after(const exec::RunState&, const exec::Instruction&, const Device*) override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // gives other threads time to run nodes too
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
    control.threads.pool = &pool;
    control.observer = &counter;
    control.threads.inter_op = limit;
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
  control.threads.pool = &pool;
  auto worth = [&](const Program& program) {
    exec::Frame frame(program.frames());
    frame.start(branch_feeds(), {}, control, {});
    return exec::worth_parallel(program, frame.binding(), control);
  };
  EXPECT_FALSE(worth(chain));
  EXPECT_TRUE(worth(wide));
  control.threads.inter_op = 1;
  EXPECT_FALSE(worth(wide));
}

TEST(Parallel, TheFirstErrorWinsAndTheProgramStaysUsable) {
  ThreadPool pool(3);
  Program program(branches(4, 4, /*failing=*/true), kParallel);
  exec::RunControl control;
  control.threads.pool = &pool;
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
  control.threads.pool = &pool;
  control.stop.cancel = &cancel;
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
      control.threads.pool = &pool;
      for (int i = 0; i < 20; ++i) expect_same_bits(run(program, feeds, control), expected);
    });
  for (std::thread& client : clients) client.join();
}

// Records which instructions have run.
class Ran final : public exec::Observer {
 public:
  explicit Ran(const Program& program) : program_(program) {}
  void ready(const exec::RunState&, const exec::Instruction&) override {}
  void before(const exec::RunState&, const exec::Instruction&) override {}
  void after(const exec::RunState&, const exec::Instruction& instruction, const Device*) override {
    std::lock_guard lock(mutex_);
    indices.insert(index_of(program_.id_of(instruction)));
  }
  std::set<size_t> indices;

 private:
  const Program& program_;
  std::mutex mutex_;
};

exec::RunControl on(ThreadPool& pool) {
  exec::RunControl control;
  control.threads.pool = &pool;
  return control;
}

TEST(Parallel, ARunStopsAfterAnyNumberOfStepsAndGoesOn) {
  ThreadPool pool(4);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<Datum> feeds = random_feeds(seed), expected = run(Program(random_graph(seed)), feeds);
    const Program program(random_graph(seed), kParallel);
    Ran ran(program);
    exec::RunControl control = on(pool);
    if (seed % 2 == 0) control.observer = &ran;
    std::mt19937 random(seed);
    exec::Frame frame(program.frames());
    for (int round = 0; round < 2; ++round) {
      ran.indices.clear();
      frame.start(feeds, {}, control, {});
      ASSERT_TRUE(frame.goes_by_readiness());
      const size_t count = program.instructions().size();
      for (size_t done = 0; done < count;) {
        const size_t steps = random() % 6;
        EXPECT_EQ(frame.advance(steps), done + steps >= count);
        done = std::min(done + steps, count);
        EXPECT_EQ(frame.steps_left(), count - done);
        if (!control.observer) continue;
        EXPECT_EQ(ran.indices.size(), done);  // exactly the instructions before the stop have run
        if (done > 0) {
          EXPECT_EQ(*ran.indices.rbegin(), done - 1);
        }
      }
      std::vector<Datum> outputs(expected.size());
      frame.take_outputs(outputs);
      expect_same_bits(outputs, expected);
    }
  }
}

TEST(Parallel, ARunStopsAtAYieldAndGoesOn) {
  ThreadPool pool(3);
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  ValueId twice = b.node("Add", {x, x}), square = b.node("Mul", {x, x});
  ValueId handed = b.nodes("Yield", {twice, square}, 1, {}, "yield", "treadle")[0];
  b.output(b.node("Sub", {handed, square}), "y");
  b.output(b.node("Neg", {x}), "z");  // this node does not read the value that resume() hands in, but it also runs after the yield
  const Program program(b.finish(), kParallel);
  Ran ran(program);
  exec::RunControl control = on(pool);
  control.observer = &ran;
  exec::Frame frame(program.frames());
  for (float value : {3.0F, 5.0F}) {
    Tensor feed(DType::float32, {4}), tens(DType::float32, {4});
    for (float& element : feed.span<float>()) element = value;
    for (float& element : tens.span<float>()) element = 10;
    ran.indices.clear();
    frame.start(std::vector<Datum>{feed}, {}, control, {});
    EXPECT_TRUE(frame.goes_by_readiness());
    EXPECT_FALSE(frame.advance());
    EXPECT_FALSE(frame.advance());  // the frame still waits at the yield
    EXPECT_EQ(ran.indices, (std::set<size_t>{0, 1}));
    const std::vector<Datum> yielded = frame.yielded();
    EXPECT_EQ(yielded[0].tensor().data<float>()[3], 2 * value);
    EXPECT_EQ(yielded[1].tensor().data<float>()[3], value * value);
    frame.resume(std::vector<Datum>{tens});
    EXPECT_TRUE(frame.advance());
    std::vector<Datum> outputs(2);
    frame.take_outputs(outputs);
    EXPECT_EQ(outputs[0].tensor().data<float>()[0], 10 - value * value);
    EXPECT_EQ(outputs[1].tensor().data<float>()[0], -value);
    frame.clear();
  }
}

TEST(Parallel, FeedsComeLaterAndOutputsAreFetchedEarly) {
  ThreadPool pool(3);
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n")}), late = b.input("late", DType::float32, {b.symbol("n")});
  ValueId twice = b.node("Add", {x, x});
  b.output(twice, "y");
  b.output(b.node("Mul", {twice, late}), "z");
  const Program program(b.finish(), kParallel);
  exec::RunControl control = on(pool);
  control.feeds.later = true;
  exec::Frame frame(program.frames());
  Tensor feed(DType::float32, {2});
  feed.data<float>()[0] = 3, feed.data<float>()[1] = 4;
  frame.start(std::vector<Datum>{feed, {}}, {}, control, {});
  EXPECT_TRUE(frame.goes_by_readiness());
  EXPECT_FALSE(frame.has_output(0));
  EXPECT_FALSE(frame.advance());
  EXPECT_TRUE(frame.has_output(0));
  EXPECT_EQ(frame.output(0).tensor().data<float>()[1], 8);
  EXPECT_FALSE(frame.has_output(1));
  EXPECT_THROW(frame.advance(), Error);
  frame.feed(1, feed);
  EXPECT_TRUE(frame.advance());
  EXPECT_EQ(frame.output(1).tensor().data<float>()[1], 32);
}

TEST(Parallel, AnOutputInAFeedsMemoryIsMadeInOrderUnlessItsReadersComeFirstAnyway) {
  ThreadPool pool(2);
  for (bool has_other_reader : {false, true}) {
    GraphBuilder b;
    ValueId x = b.input("x", DType::float32, {4});
    if (has_other_reader) b.output(b.node("Abs", {x}), "z");
    b.output(b.node("Neg", {x}), "y");
    const Program program(b.finish(), kParallel);
    exec::Frame frame(program.frames());
    const std::vector<Datum> feeds{Tensor(DType::float32, {4})}, other{Tensor(DType::float32, {4})};
    std::vector<Datum> bound(program.output_slots().size());
    bound.back() = feeds[0];
    frame.start(feeds, bound, on(pool), {});
    EXPECT_EQ(frame.goes_by_readiness(), !has_other_reader);
    bound.back() = other[0];
    frame.start(feeds, bound, on(pool), {});
    EXPECT_TRUE(frame.goes_by_readiness());
  }
}

TEST(Parallel, UpdatesComeAfterAllElseAndAreWrittenInPlace) {
  ThreadPool pool(3);
  GraphBuilder b;
  ValueId state = b.input("state", DType::float32, {4}), second = b.input("second", DType::float32, {4});
  ValueId x = b.input("x", DType::float32, {4});
  ValueId sum = b.node("Add", {state, x}), product = b.node("Mul", {second, x});
  b.output(b.node("Assign", {state, sum}, {}, "a", "treadle"), "new_state");
  b.output(b.node("Assign", {second, x}, {}, "b", "treadle"), "new_second");
  b.output(b.node("Sub", {product, state}), "y");
  const Program program(b.finish(), kParallel);
  ASSERT_EQ(index_of(program.commit_from()), 3U);
  for (int32_t update : {3, 4})
    for (int32_t other = 0; other < 3; ++other)
      EXPECT_TRUE(program.parallel()->reach.before(exec::InstructionId{other}, exec::InstructionId{update}));
  auto filled = [](float value) {
    Tensor made(DType::float32, {4});
    for (float& element : made.span<float>()) element = value;
    return made;
  };
  exec::Frame frame(program.frames());
  const std::vector<Datum> feeds{filled(1), filled(2), filled(10)};
  frame.start(feeds, std::vector<Datum>{feeds[0], feeds[1], {}}, on(pool), {});
  EXPECT_TRUE(frame.goes_by_readiness());
  EXPECT_TRUE(frame.advance());
  EXPECT_EQ(feeds[0].tensor().data<float>()[3], 11);  // the run updates the feed before it takes its outputs
  EXPECT_EQ(feeds[1].tensor().data<float>()[3], 10);
  std::vector<Datum> outputs(3);
  frame.take_outputs(outputs);
  EXPECT_EQ(outputs[2].tensor().data<float>()[3], 2 * 10 - 1);
}

// Makes present = Concat(past, x), with heads before rows if there are several, and y = present + present.
std::shared_ptr<Graph> cache_of_rows(int64_t num_heads) {
  GraphBuilder b;
  const ValueId past = b.input("past", DType::float32, {num_heads, b.symbol("p"), 4});
  const ValueId x = b.input("x", DType::float32, {num_heads, b.symbol("n"), 4});
  const ValueId present = b.node("Concat", {past, x}, {{"axis", int64_t{1}}});
  b.output(present, "present");
  b.output(b.node("Add", {present, present}), "y");
  return b.finish();
}

TEST(Parallel, StatesThatGrowTakeNoOrder) {
  ThreadPool pool(3);
  for (const int64_t num_heads : {1, 2}) {
    const Program program(cache_of_rows(num_heads), kParallel);
    constexpr int64_t kRoom = 64, kRows = 3;
    auto memory = Storage::allocate(static_cast<size_t>(num_heads * kRoom * 4) * sizeof(float));
    const size_t offset = num_heads == 1 ? 0 : 1024;  // appends rows behind the end, or moves them down to before the beginning
    Tensor past(DType::float32, {num_heads, kRows, 4}, memory, offset), x(DType::float32, {num_heads, 1, 4});
    auto element = [](int64_t head, int64_t row) { return static_cast<float>(10 * head + row); };
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t row = 0; row < kRows; ++row) std::fill_n(past.data<float>() + (head * kRows + row) * 4, 4, element(head, row));
      std::fill_n(x.data<float>() + head * 4, 4, element(head, kRows));
    }
    std::vector<exec::OutputMemory> where(2);
    where[0].reusable = where[0].stays = true;
    (num_heads == 1 ? where[0].appends_to : where[0].grows_from) = 0;
    exec::Frame frame(program.frames());
    frame.start(std::vector<Datum>{past, x}, {}, on(pool), where);
    EXPECT_TRUE(frame.goes_by_readiness());
    EXPECT_TRUE(frame.advance());
    std::vector<Datum> outputs(2);
    frame.take_outputs(outputs);
    const Tensor present = outputs[0].tensor();
    EXPECT_EQ(present.storage() == memory, num_heads == 1) << "rows are moved within a state only in the program's order";
    for (int64_t head = 0; head < num_heads; ++head)
      for (int64_t row = 0; row <= kRows; ++row)
        EXPECT_EQ(present.data<float>()[(head * (kRows + 1) + row) * 4 + 1], element(head, row)) << head << ", " << row;
  }
}

TEST(Parallel, ANodeFromOutsideIsUnderWayUntilItsEnd) {
  testing::register_fault_operators();
  ThreadPool pool(3);
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {4});
  b.output(b.node("DynamicStep", {x}, {}, "outside", "test.fault"), "y");
  b.output(b.node("Abs", {x}), "z");
  const Program program(b.finish(), kParallel);
  exec::Caller caller;
  exec::RunControl control = on(pool);
  control.stop.caller = &caller;
  exec::Frame frame(program.frames());
  std::string seen;
  testing::set_fault(0, [&] { seen = caller.under_way.load() ? caller.under_way.load()->name : "none"; });
  frame.start(std::vector<Datum>{Tensor::vector<float>(std::vector<float>{1, 2, 3, 4})}, {}, control, {});
  EXPECT_TRUE(frame.goes_by_readiness());
  EXPECT_TRUE(frame.advance());
  EXPECT_EQ(seen, "outside");
  EXPECT_EQ(caller.under_way.load(), nullptr);
}

TEST(Parallel, ACacheKeepsValuesAndReplacesNodes) {
  ThreadPool pool(3);
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4});
  ValueId kept = b.node("Add", {x, x}, {}, "twice");
  b.output(b.node("Neg", {kept}), "y");
  b.output(b.node("Abs", {kept}), "z");
  const std::shared_ptr<Graph> graph = b.finish();
  const Program program(graph, kParallel);
  const auto cache = std::make_shared<exec::ValueCache>();
  const std::string name = graph->value(kept).name;
  (*cache)[name] = Datum();
  exec::Frame frame(program.frames());
  auto first_of = [&](float value) {
    Tensor feed(DType::float32, {4});
    for (float& element : feed.span<float>()) element = value;
    frame.start(std::vector<Datum>{feed}, {}, on(pool), {});
    frame.set_cache(cache);
    EXPECT_TRUE(frame.goes_by_readiness());
    EXPECT_TRUE(frame.advance());
    std::vector<Datum> outputs(2);
    frame.take_outputs(outputs);
    return outputs[0].tensor().data<float>()[0];
  };
  EXPECT_EQ(first_of(3), -6);
  ASSERT_TRUE((*cache)[name].defined());
  EXPECT_EQ(first_of(100), -6);  // this value is read from the cache
}

}  // namespace
}  // namespace treadle
