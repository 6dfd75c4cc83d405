#include "treadle/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using Variables = std::vector<Engine::Variable>;

// Results depend only on the order in which operations are pushed, so they must equal those of operations executed one by one.
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

TEST(Engine, ScratchSpacesBelongToOneOperationAtATime) {
  for (bool naive : {false, true}) {
    Engine engine({.naive = naive, .num_threads = 4, .num_scratch_spaces = 2});
    std::atomic<int> wrong{0};
    for (int i = 0; i < 200; ++i) {
      Engine::Scratch scratch = engine.scratch();
      const size_t size = 64 + static_cast<size_t>(i % 7) * 100;
      engine.push(
          [&, scratch, i, size] {
            std::byte* data = scratch.get(size);
            wrong += reinterpret_cast<uintptr_t>(data) % Storage::kAlignment != 0 || scratch.capacity_bytes() < size;
            std::memset(data, i, size);
            std::this_thread::yield();
            for (size_t k = 0; k < size; ++k) wrong += data[k] != static_cast<std::byte>(i);
          },
          {}, Variables{scratch.variable()});
    }
    engine.wait_all();
    EXPECT_EQ(wrong, 0);
    EXPECT_THROW(engine.scratch().get(1), Error) << "outside of an operation";
    Engine::Scratch scratch = engine.scratch();
    Engine::Variable other = engine.variable();
    try {
      engine.push([scratch] { scratch.get(1); }, {}, Variables{other});
      engine.wait_for(other);
      ADD_FAILURE() << "an operation that does not write the variable";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("writes its variable"), std::string::npos);
    }
  }
}

TEST(Engine, ScratchComesFromTheAllocatorAndItsFailureSurfaces) {
  AllocatorCallbacks callbacks;
  callbacks.allocate = [](size_t size_bytes, MemoryClass memory_class) {
    return size_bytes > 4096 ? nullptr : plain_allocator()->allocate(size_bytes, memory_class);
  };
  callbacks.free = [](void* data, size_t size_bytes, MemoryClass memory_class) { plain_allocator()->free(data, size_bytes, memory_class); };
  auto allocator = std::make_shared<CallbackAllocator>(std::move(callbacks));
  {
    Engine engine({.allocator = allocator});
    Engine::Scratch scratch = engine.scratch();
    engine.push([scratch] { scratch.get(4000); }, {}, Variables{scratch.variable()});
    engine.wait_all();
    EXPECT_GE(allocator->statistics()[MemoryClass::scratch].bytes, 4000U);
    engine.push([scratch] { scratch.get(5000); }, {}, Variables{scratch.variable()});
    EXPECT_THROW(engine.wait_all(), Error);
    engine.push([scratch] { scratch.get(100); }, {}, Variables{scratch.variable()});
    engine.wait_all();
  }
  EXPECT_EQ(allocator->statistics().total.bytes, 0U);
}

// The random numbers depend only on the order in which operations are pushed, so they must equal those of an engine without threads.
TEST(Engine, RandomStreamsGiveTheSameNumbersWhateverTheThreads) {
  std::vector<std::vector<double>> all;
  for (int threads : {0, 1, 4}) {
    Engine engine({.naive = threads == 0, .num_threads = threads});
    Engine::RandomStream a = engine.random_stream(7), b = engine.random_stream(8);
    std::vector<std::vector<double>> taken(60);
    for (size_t i = 0; i < taken.size(); ++i) {
      const Engine::RandomStream& stream = i % 3 == 0 ? b : a;
      engine.push(
          [&taken, stream, i] {
            if (i == 40) stream.seed(9);
            taken[i].resize(1 + i % 5);
            i % 2 == 0 ? stream.uniform(taken[i]) : stream.normal(taken[i]);
          },
          {}, Variables{stream.variable()}, static_cast<int>(i % 4));
    }
    engine.wait_all();
    std::vector<double> joined;
    for (const auto& numbers : taken) joined.insert(joined.end(), numbers.begin(), numbers.end());
    all.push_back(joined);
    EXPECT_THROW(a.uniform(joined), Error);
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
  std::set<double> different(all[0].begin(), all[0].end());
  EXPECT_EQ(different.size(), all[0].size());
}

TEST(Engine, ReadersRunAtOnceAndWritersAlone) {
  Engine engine({.num_threads = 2});
  Variables v{engine.variable()};
  std::atomic<int> inside{0};
  // Two operations wait for each other, so they only end if both run at the same time.
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
    engine.push([&] { ++ran; }, a, b);  // this operation does not run, because it reads a variable that has failed
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
    engine.push([&] { ran += 1000; }, {}, a);  // this operation writes without reading, so the variable is valid again
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
  engine.push([&] { x.data<float>()[0] = -1; }, {}, v);  // this operation waits for the run, which reads x
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
  // A variable that is named several times counts once, as a variable that is written.
  Variables v{engine.variable()}, twice{v[0], v[0]};
  int ran = 0;
  engine.push([&] { ++ran; }, twice, twice);
  engine.wait_for(v[0]);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(v[0].version(), 1U);
}

}  // namespace
}  // namespace treadle
