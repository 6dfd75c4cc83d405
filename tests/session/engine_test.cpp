#include "treadle/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using Variables = std::vector<Engine::Variable>;

// What a sequence of operations leaves behind does not depend on the engine: against plain execution in order.
TEST(Engine, RandomOperationsLeaveWhatTheyLeaveInOrder) {
  for (bool naive : {false, true}) {
    for (uint32_t seed = 0; seed < 30; ++seed) {
      std::mt19937 random(seed);
      Engine engine({.naive = naive, .num_threads = 4});
      constexpr size_t kCount = 6;
      Variables variables;
      for (size_t i = 0; i < kCount; ++i) variables.push_back(engine.variable());
      std::vector<uint64_t> values(kCount, 1), expected(kCount, 1);
      std::vector<uint64_t> versions(kCount, 0);
      for (int i = 0; i < 200; ++i) {
        std::vector<size_t> reads, writes;
        for (size_t v = 0; v < kCount; ++v) (random() % 3 == 0 ? reads : random() % 4 == 0 ? writes : reads).push_back(v);
        reads.resize(std::min<size_t>(reads.size(), random() % 3));
        auto apply = [reads, writes, i](std::vector<uint64_t>& on) {
          uint64_t sum = static_cast<uint64_t>(i);
          for (size_t v : reads) sum += on[v];
          for (size_t v : writes) on[v] = on[v] * 31 + sum;
        };
        apply(expected);
        for (size_t v : writes) ++versions[v];
        Variables read, write;
        for (size_t v : reads) read.push_back(variables[v]);
        for (size_t v : writes) write.push_back(variables[v]);
        engine.push([apply, &values] { apply(values); }, read, write, static_cast<int>(random() % 3));
      }
      engine.wait_all();
      EXPECT_EQ(values, expected) << "seed " << seed;
      for (size_t v = 0; v < kCount; ++v) EXPECT_EQ(variables[v].version(), versions[v]);
      EXPECT_EQ(engine.num_pending(), 0U);
    }
  }
}

TEST(Engine, ReadersRunAtOnceAndWritersAlone) {
  Engine engine({.num_threads = 2});
  Variables v{engine.variable()};
  std::atomic<int> inside{0};
  // Each waits for the other: they can end only if they run at once.
  auto meet = [&] {
    ++inside;
    while (inside < 2) std::this_thread::yield();
  };
  engine.push(meet, v, {});
  engine.push(meet, v, {});
  engine.push([&] { EXPECT_EQ(inside, 2); }, {}, v);
  engine.wait_all();
}

TEST(Engine, ErrorsSurfaceAtTheWaitOnceAndPassThroughReaders) {
  for (bool naive : {false, true}) {
    Engine engine({.naive = naive});
    Variables a{engine.variable()}, b{engine.variable()}, c{engine.variable()};
    int ran = 0;
    engine.push([] { throw Error(ErrorCode::io_error, "no disk"); }, {}, a);
    engine.push([&] { ++ran; }, a, b);  // does not run
    engine.push([&] { ran += 10; }, {}, c);
    engine.wait_for(c[0]);
    EXPECT_THROW(engine.wait_for(b[0]), Error);
    EXPECT_NO_THROW(engine.wait_for(b[0]));
    EXPECT_EQ(ran, 10);
    try {
      engine.wait_all();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io_error);
    }
    EXPECT_NO_THROW(engine.wait_all());
    engine.push([&] { ran += 100; }, a, b);
    engine.wait_all();
    EXPECT_EQ(ran, 110);
    engine.push([] { throw Error(ErrorCode::io_error, "again"); }, {}, a);
    engine.push([&] { ran += 1000; }, {}, a);  // only writes: sets it right
    engine.push([] { throw Error(ErrorCode::internal, "writes nothing"); }, b, {});
    EXPECT_NO_THROW(engine.wait_for(a[0]));
    EXPECT_THROW(engine.wait_all(), Error);
    EXPECT_EQ(ran, 1110);
  }
}

TEST(Engine, OfReadyOperationsTheHighestPriorityGoesFirst) {
  Engine engine({.num_threads = 1});
  Variables gate{engine.variable()};
  std::atomic<bool> open{false};
  engine.push(
      [&] {
        while (!open) std::this_thread::yield();
      },
      {}, gate);
  std::vector<int> order;
  for (int priority : {0, 5, -3, 5}) engine.push([&order, priority] { order.push_back(priority); }, gate, {}, priority);
  open = true;
  engine.wait_all();
  EXPECT_EQ(order, (std::vector<int>{5, 5, 0, -3}));
}

TEST(Engine, OrdersRunsOfSessionsByWhatTheyReadAndWrite) {
  Engine engine;
  Session session(testing::two_outputs().model());
  Tensor x = testing::floats({1, 2});
  Variables v{engine.variable()}, result{engine.variable()};
  engine.push([&] { std::this_thread::sleep_for(std::chrono::milliseconds(5)), x.data<float>()[0] = 5; }, {}, v);
  auto future = engine.run_async(session, {{"x", x}}, {"y"}, v, result);
  engine.push([&] { x.data<float>()[0] = -1; }, {}, v);  // after the run
  EXPECT_EQ(testing::values_of(future.get()[0]), (std::vector<float>{30, 6}));
  engine.wait_all();
  auto failing = engine.run_async(session, {{"x", Tensor(DType::int64, {1})}}, {"y"}, {}, result);
  auto never = engine.run_async(session, {{"x", x}}, {"y"}, result, {});
  EXPECT_THROW(failing.get(), Error);
  EXPECT_THROW(never.get(), Error);
  EXPECT_THROW(engine.wait_for(result[0]), Error);
}

TEST(Engine, RefusesWhatItCannotOrder) {
  Engine engine, other;
  EXPECT_THROW(engine.push({}, {}, {}), Error);
  Variables foreign{other.variable()};
  EXPECT_THROW(engine.push([] {}, foreign, {}), Error);
  EXPECT_THROW(engine.wait_for(foreign[0]), Error);
  // In both lists and twice: written once.
  Variables v{engine.variable()}, twice{v[0], v[0]};
  int ran = 0;
  engine.push([&] { ++ran; }, twice, twice);
  engine.wait_for(v[0]);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(v[0].version(), 1U);
}

}  // namespace
}  // namespace treadle
