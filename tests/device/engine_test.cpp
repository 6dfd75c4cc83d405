// Tests the compute engine that all streams of a simulated device may share: which work runs first, and which work yields in the middle.
#include "device/sim/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace treadle {
namespace {

const std::function<void()> kFirst;         // work that does not yield
const std::function<void()> kLast = [] {};  // a function that marks work that yields
constexpr int64_t kManyChunks = 30'000;     // each chunk takes a millisecond unless other work interrupts it

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

TEST(SimEngine, WorkThatGivesWayLeavesBetweenTheChunksOfItsLoop) {
  SimEngine engine;
  std::atomic<bool> under_way{false};
  std::atomic<int64_t> chunks{0}, chunks_before{-1};
  std::thread guaranteed([&] {
    while (!under_way) rest();
    SimEngine::Occupation occupation(engine, kFirst);
    chunks_before = chunks.load();
    rest();
    EXPECT_EQ(chunks, chunks_before) << "one at a time";
  });
  {
    SimEngine::Occupation occupation(engine, kLast);
    parallel_for(nullptr, kManyChunks, 1, [&](int64_t, int64_t) {
      under_way = true;
      ++chunks;
      if (chunks_before < 0) rest();
    });
  }
  guaranteed.join();
  EXPECT_EQ(chunks, kManyChunks) << "it went on where it was";
  EXPECT_LT(chunks_before, kManyChunks);
}

TEST(SimEngine, OtherWorkStaysUntilItsEnd) {
  SimEngine engine;
  std::atomic<bool> waits{false}, ended{false};
  std::thread other;
  {
    SimEngine::Occupation occupation(engine, kFirst);
    EXPECT_EQ(LoopBreakScope::current(), nullptr);
    other = std::thread([&] {
      waits = true;
      SimEngine::Occupation second(engine, kFirst);
      EXPECT_TRUE(ended);
    });
    while (!waits) rest();
    rest();
    ended = true;
  }
  other.join();
}

TEST(SimEngine, WorkThatGivesWayBeginsLast) {
  SimEngine engine;
  std::string order;
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  {
    SimEngine::Occupation occupation(engine, kFirst);
    auto add = [&](const std::function<void()>& gives_way, char name) {
      const int before = waiting;
      threads.emplace_back([&engine, &order, &waiting, &gives_way, name] {
        ++waiting;
        SimEngine::Occupation own(engine, gives_way);
        order += name;
      });
      while (waiting == before) rest();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // waits until the thread is waiting in the queue
    };
    add(kLast, 'c');
    add(kFirst, 'a');
    add(kFirst, 'b');
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, "abc");
}

TEST(SimEngine, AWaitThatIsEndedLeavesTheLine) {
  SimEngine engine;
  const std::function<void()> cancelled = [] { throw std::runtime_error("cancelled"); };
  {
    SimEngine::Occupation occupation(engine, kFirst);
    std::thread other([&] { EXPECT_THROW(SimEngine::Occupation(engine, cancelled), std::runtime_error); });
    other.join();
  }
  SimEngine::Occupation next(engine, kLast);
}

// Work that has yielded is cancelled before it continues.
TEST(SimEngine, WorkMayEndWhileItGivesWay) {
  SimEngine engine;
  std::atomic<bool> under_way{false}, computes{false}, stop{false};
  std::thread guaranteed([&] {
    while (!under_way) rest();
    SimEngine::Occupation occupation(engine, kFirst);
    computes = true;
    while (!stop) rest();
  });
  const std::function<void()> ends = [&] {
    if (computes) throw std::runtime_error("cancelled");
  };
  auto work = [&] {
    SimEngine::Occupation occupation(engine, ends);
    parallel_for(nullptr, kManyChunks, 1, [&](int64_t, int64_t) {
      under_way = true;
      if (!computes) rest();
    });
  };
  EXPECT_THROW(work(), std::runtime_error);
  stop = true;
  guaranteed.join();
  SimEngine::Occupation next(engine, kLast);
}

}  // namespace
}  // namespace treadle
