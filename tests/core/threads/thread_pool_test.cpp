#include "core/threads/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/trace/record_filter.h"
#include "core/trace/recorder.h"
#include "tests/sanitizers.h"

namespace treadle {
namespace {

// The thread sanitizer does not allow new threads in a child that was forked from a process with several threads.
constexpr bool kChildMayStartThreads = !test::kThreadSanitizer;

using Chunks = std::set<std::pair<int64_t, int64_t>>;

Chunks chunks_of(ThreadPool* pool, int64_t n, int64_t grain) {
  Chunks chunks;
  std::mutex mutex;
  parallel_for(pool, n, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    EXPECT_TRUE(chunks.emplace(begin, end).second) << "[" << begin << ", " << end << ") came twice";
  });
  return chunks;
}

TEST(ThreadPool, EveryElementIsVisitedOnce) {
  ThreadPool pool(4);
  for (int64_t n : {1, 2, 3, 17, 1000, 4097}) {
    for (int64_t grain : {1, 2, 7, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      for (auto& count : visits) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, ChunkBoundsDoNotDependOnTheNumberOfThreads) {
  ThreadPool one(1), two(2), five(5);
  const Chunks expected = {{0, 8}, {8, 16}, {16, 24}, {24, 27}};
  EXPECT_EQ(chunks_of(nullptr, 27, 8), expected);
  EXPECT_EQ(chunks_of(&one, 27, 8), expected);
  EXPECT_EQ(chunks_of(&two, 27, 8), expected);
  EXPECT_EQ(chunks_of(&five, 27, 8), expected);
  ParallelLimit limit(1);
  EXPECT_EQ(chunks_of(&five, 27, 8), expected);
}

TEST(ThreadPool, NothingRunsForAnEmptyRange) {
  ThreadPool pool(2);
  pool.parallel_for(0, 1, [](int64_t, int64_t) { FAIL(); });
  pool.parallel_for(-3, 1, [](int64_t, int64_t) { FAIL(); });
}

TEST(ThreadPool, HugeRangesDoNotOverflow) {
  ThreadPool pool(2);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const Chunks expected = {{0, kMax - 1}, {kMax - 1, kMax}};
  EXPECT_EQ(chunks_of(&pool, kMax, kMax - 1), expected);
  EXPECT_EQ(chunks_of(nullptr, kMax, kMax - 1), expected);
}

// A thread gets the same part of the chunks in each loop, so that its caches still hold what it wrote in the loop before.
TEST(ThreadPool, TheCallersPartComesFirstAndTheHelpersBehindIt) {
  ThreadPool pool(2);
  for (int64_t chunks = 2; chunks < 12; ++chunks) {
    std::atomic<int64_t> callers{-1}, helpers{-1};
    const auto caller = std::this_thread::get_id();
    pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t) {
      auto& first = std::this_thread::get_id() == caller ? callers : helpers;
      int64_t none = -1;
      if (!first.compare_exchange_strong(none, begin)) return;
      while (callers < 0 || helpers < 0) std::this_thread::yield();
    });
    EXPECT_EQ(callers, 0);
    EXPECT_EQ(helpers, (chunks + 1) / 2);
  }
}

TEST(ThreadPool, ThreadsWorkAtTheSameTime) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  pool.parallel_for(3, 1, [&](int64_t, int64_t) {  // the loop ends only if three threads run at the same time
    ++inside;
    while (inside < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 3);
}

TEST(ThreadPool, LoopsNest) {
  ThreadPool pool(4);
  std::atomic<int> count{0};
  pool.parallel_for(8, 1, [&](int64_t, int64_t) {
    pool.parallel_for(8, 1, [&](int64_t, int64_t) { pool.parallel_for(8, 1, [&](int64_t, int64_t) { ++count; }); });
  });
  EXPECT_EQ(count, 512);
}

TEST(ThreadPool, TheFirstExceptionReachesTheCallerAndThePoolStaysUsable) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> running{0};
    try {
      pool.parallel_for(100, 1, [&](int64_t begin, int64_t) {
        ++running;
        if (begin % 10 == 3) {
          --running;
          throw std::runtime_error("chunk " + std::to_string(begin));
        }
        --running;
      });
      FAIL() << "no exception arrived";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).rfind("chunk ", 0), 0U);
    }
    EXPECT_EQ(running, 0) << "chunks still ran after the call";
    EXPECT_EQ(chunks_of(&pool, 10, 1).size(), 10U);
  }
}

TEST(ThreadPool, AnExceptionInANestedLoopPassesThroughTheOuterOne) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(4, 1,
                                 [&](int64_t, int64_t) {
                                   pool.parallel_for(4, 1, [](int64_t begin, int64_t) {
                                     if (begin == 2) throw std::out_of_range("inner");
                                   });
                                 }),
               std::out_of_range);
}

TEST(ThreadPool, ManyCallersShareOnePool) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        int64_t sum = 0;
        std::atomic<int64_t> shared_sum{0};
        pool.parallel_for(50, 8, [&](int64_t begin, int64_t end) {
          int64_t part = 0;
          for (int64_t i = begin; i < end; ++i) part += i;
          shared_sum += part;
        });
        sum = shared_sum;
        ASSERT_EQ(sum, 1225);
        total += sum;
      }
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total, int64_t{1225} * 6 * 2000);
}

TEST(ThreadPool, MoreRegionsThanSlotsStillRun) {
  ThreadPool pool(2);
  std::atomic<int> count{0};
  // Each level of nesting uses one of the places that the pool has for concurrent loops, and there are fewer than 100.
  auto descend = [&](auto&& self, int depth) -> void {
    pool.parallel_for(2, 1, [&](int64_t begin, int64_t) {
      ++count;
      if (begin == 0 && depth > 0) self(self, depth - 1);
    });
  };
  descend(descend, 99);
  EXPECT_EQ(count, 200);
}

TEST(ThreadPool, WorkersThatSleptWakeUp) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> inside{0};
    pool.parallel_for(3, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 3) std::this_thread::yield();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than idle workers spin before they sleep
  }
}

TEST(ThreadPool, AnIdlePoolUsesNoProcessorTime) {
  ThreadPool pool(4);
  chunks_of(&pool, 100, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1) << "four spinning threads would use 0.2 to 0.6 s";
}

TEST(ThreadPool, ALimitHoldsForNestedLoopsToo) {
  ThreadPool pool(6);
  ParallelLimit limit(2);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> inside{0}, most{0};
    pool.parallel_for(12, 1, [&](int64_t, int64_t) {
      pool.parallel_for(4, 1, [&](int64_t, int64_t) {
        int now = ++inside, seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::yield();
        --inside;
      });
    });
    EXPECT_LE(most, 2);
  }
}

TEST(ThreadPool, FromAsManyCallersOnAsThereAreThreadsEachComputesAlone) {
  ThreadPool pool(3);
  auto meet = [&] {  // returns only if a helper thread joins
    std::atomic<int> inside{0};
    pool.parallel_for(2, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    });
  };
  PoolCaller first(&pool), inside_the_first(&pool);  // a caller within another one is counted only once
  meet();
  std::atomic<int> in{0};
  std::atomic<bool> leave{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      PoolCaller caller(&pool);
      ++in;
      while (!leave) std::this_thread::yield();
      PoolCaller::Away away;
      --in;
      while (leave) std::this_thread::yield();
    });
  while (in < 2) std::this_thread::yield();
  pool.parallel_for(64, 1, [self = std::this_thread::get_id()](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
  leave = true;
  while (in > 0) std::this_thread::yield();
  meet();
  leave = false;
  for (std::thread& other : others) other.join();
}

TEST(ThreadPool, ALoopRestsBetweenItsChunks) {
  struct Rest final : LoopBreak {
    std::thread::id owner = std::this_thread::get_id();
    std::atomic<int> done{0}, rests{0};
    bool wanted() const noexcept override { return done >= 10 && rests == 0; }
    void take() override {
      EXPECT_EQ(std::this_thread::get_id(), owner);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++rests;
    }
  };
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    Rest rest;
    LoopBreakScope scope(&rest);
    parallel_for(&pool, 100, 1, [&](int64_t, int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ++rest.done;
    });
    EXPECT_EQ(rest.done, 100);
    EXPECT_EQ(rest.rests, 1);
  }
  struct Refusal final : LoopBreak {
    bool wanted() const noexcept override { return true; }
    void take() override { throw std::runtime_error("the run is cancelled"); }
  } refusal;
  ThreadPool pool(2);
  LoopBreakScope scope(&refusal);
  EXPECT_THROW(pool.parallel_for(10, 1, [](int64_t, int64_t) {}), std::runtime_error);
}

TEST(ThreadPool, AForkedChildComputesWithItsOwnWorkers) {
  if (!kChildMayStartThreads) GTEST_SKIP() << "a child of a program under the thread sanitizer may not start threads";
  ThreadPool pool(3);
  chunks_of(&pool, 100, 1);
  pid_t child = fork();
  if (child == 0) {
    std::atomic<int> inside{0};
    std::atomic<int64_t> sum{0};
    pool.parallel_for(1000, 10, [&](int64_t begin, int64_t end) { sum += end - begin; });
    pool.parallel_for(3, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 3) std::this_thread::yield();
    });
    _exit(sum == 1000 && inside == 3 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(chunks_of(&pool, 100, 1).size(), 100U);  // the parent's pool still works
}

TEST(ThreadPool, AForkWhileOtherThreadsComputeLeavesTheChildAWorkingPool) {
  if (!kChildMayStartThreads) GTEST_SKIP() << "a child of a program under the thread sanitizer may not start threads";
  ThreadPool pool(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      while (!stop) pool.parallel_for(64, 1, [](int64_t, int64_t) {});
    });
  for (int round = 0; round < 20; ++round) {
    pid_t child = fork();
    if (child == 0) {
      std::atomic<int64_t> sum{0};
      for (int i = 0; i < 100; ++i) pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      _exit(sum == 10000 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  for (auto& caller : callers) caller.join();
}

TEST(ThreadPool, AChildMayDestroyAPoolThatItNeverUsed) {
  auto pool = std::make_unique<ThreadPool>(3);
  chunks_of(pool.get(), 100, 1);
  pid_t child = fork();
  if (child == 0) {
    pool.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ThreadPool, TheSharedPoolIsNoWiderThanTheUsableCpus) {
  EXPECT_EQ(ThreadPool::shared(), ThreadPool::shared());
  EXPECT_EQ(ThreadPool::shared()->num_threads(), ThreadPool(0).num_threads());
  EXPECT_LE(ThreadPool::shared()->num_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

// Returns the recorded states of each thread that has any, in order, with their names.
std::map<int64_t, std::vector<std::pair<std::string, Record>>> states_of(const RecordWindow& window) {
  const Recording recording = Recorder::of_process().collect({.from = window.start()}, window);
  std::map<int64_t, std::vector<std::pair<std::string, Record>>> states;
  for (const Recording::Thread& thread : recording.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::pool) states[thread.system_id].emplace_back(recording.names[record.name].text, record);
  return states;
}

// Each thread runs exactly one chunk per loop, because no chunk ends before all have begun. So the test knows what the pool records.
TEST(ThreadPool, RecordsWhatItsThreadsDo) {
  constexpr int kThreads = 3, kLoops = 20;
  ThreadPool pool(kThreads);
  const RecordWindow window(Recorder::of_process(), {});
  for (int loop = 0; loop < kLoops; ++loop) {
    std::atomic<int> begun{0};
    pool.parallel_for(kThreads, 1, [&](int64_t, int64_t) {
      ++begun;
      while (begun < kThreads) std::this_thread::yield();
    });
  }
  // A helper writes its record only after the loop has ended.
  std::map<int64_t, std::vector<std::pair<std::string, Record>>> states;
  auto runs_of = [&](int64_t thread) {
    return std::count_if(states[thread].begin(), states[thread].end(), [](const auto& state) { return state.first == "running"; });
  };
  for (int tries = 0; tries < 1000; ++tries) {
    states = states_of(window);
    std::erase_if(states, [](const auto& thread) { return thread.first == gettid(); });
    if (states.size() == kThreads - 1 &&
        std::all_of(states.begin(), states.end(), [&](const auto& t) { return runs_of(t.first) >= kLoops; }))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(states.size(), static_cast<size_t>(kThreads - 1));
  for (const auto& [thread, list] : states) {
    EXPECT_EQ(runs_of(thread), kLoops);
    for (size_t i = 0; i < list.size(); ++i) {
      EXPECT_TRUE(list[i].first == "running" || list[i].first == "no ready work" || list[i].first == "asleep") << list[i].first;
      if (i > 0) {
        EXPECT_EQ(list[i - 1].second.end, list[i].second.start) << "states follow each other without gaps";
      }
    }
  }
}

TEST(ThreadPool, ACallerThatWaitsForAHelperIsAtABarrier) {
  ThreadPool pool(2);
  const RecordWindow window(Recorder::of_process(), {});
  std::atomic<int> begun{0};
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(2, 1, [&](int64_t, int64_t) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  const auto states = states_of(window);
  ASSERT_TRUE(states.contains(gettid()));
  const auto& own = states.at(gettid());
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own[0].first, "barrier");
  EXPECT_GT(own[0].second.end, own[0].second.start);
}

TEST(ThreadPool, RecordsNothingWithoutAProfile) {
  ThreadPool pool(2);
  parallel_for(&pool, 1000, 1, [](int64_t, int64_t) {});
  const RecordWindow window(Recorder::of_process(), {});
  EXPECT_FALSE(states_of(window).contains(gettid()));
}

}  // namespace
}  // namespace treadle
