#include "core/trace/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "core/trace/record_filter.h"

namespace treadle {
namespace {

TEST(Recorder, RecordsComeBackAsTheyWereWritten) {
  Recorder recorder;
  uint32_t conv = recorder.intern("conv", "flops", "bytes"), relu = recorder.intern("relu");
  EXPECT_EQ(recorder.intern("conv"), conv);
  recorder.record(conv, RecordKind::node, 100, 250, 7, -3);
  recorder.instant(relu, 5);
  recorder.counter(relu, 99);
  Recording recording = recorder.collect();
  ASSERT_EQ(recording.threads.size(), 1U);
  const auto& records = recording.threads[0].records;
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].start, 100U);
  EXPECT_EQ(records[0].end, 250U);
  EXPECT_EQ(records[0].arg0, 7);
  EXPECT_EQ(records[0].arg1, -3);
  EXPECT_EQ(records[0].kind, RecordKind::node);
  EXPECT_EQ(recording.names[records[0].name].text, "conv");
  EXPECT_EQ(recording.names[records[0].name].arg1_label, "bytes");
  EXPECT_EQ(records[1].kind, RecordKind::instant);
  EXPECT_EQ(records[1].start, records[1].end);
  EXPECT_EQ(records[2].arg0, 99);
  EXPECT_EQ(recording.dropped, 0U);
}

TEST(Recorder, AScopeWithoutARecorderDoesNothing) { RecordScope scope(nullptr, 0, RecordKind::user); }

TEST(Recorder, InnerScopesLieWithinOuterOnes) {
  Recorder recorder;
  uint32_t outer = recorder.intern("outer"), inner = recorder.intern("inner");
  {
    RecordScope a(&recorder, outer, RecordKind::run);
    RecordScope b(&recorder, inner, RecordKind::node);
  }
  Recording recording = recorder.collect();
  const auto& records = recording.threads.at(0).records;
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].name, inner);  // records are in the order of their ends
  EXPECT_LE(records[1].start, records[0].start);
  EXPECT_LE(records[0].end, records[1].end);
}

TEST(Recorder, EveryThreadHasItsOwnRecords) {
  Recorder recorder;
  constexpr int kThreads = 4, kRecords = 5000;  // so many records that each thread needs several blocks
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRecords; ++i) recorder.record(0, RecordKind::user, static_cast<uint64_t>(i), static_cast<uint64_t>(i), t, i);
    });
  for (auto& thread : threads) thread.join();
  Recording recording = recorder.collect();
  ASSERT_EQ(recording.threads.size(), static_cast<size_t>(kThreads));
  for (const auto& thread : recording.threads) {
    ASSERT_EQ(thread.records.size(), static_cast<size_t>(kRecords));
    for (int i = 0; i < kRecords; ++i) {
      ASSERT_EQ(thread.records[static_cast<size_t>(i)].arg1, i);
      ASSERT_EQ(thread.records[static_cast<size_t>(i)].arg0, thread.records[0].arg0);
    }
  }
}

TEST(Recorder, CollectingWhileThreadsWriteSeesWholeRecords) {
  Recorder recorder(20'000);  // the limit is small, because a writer without end would outrun the reader
  std::jthread writer([&](const std::stop_token& stop) {
    for (int64_t i = 0; !stop.stop_requested(); ++i) recorder.record(0, RecordKind::user, 1, 2, i, -i);
  });
  for (int round = 0; round < 50; ++round) {
    Recording recording = recorder.collect();
    if (recording.threads.empty()) continue;
    int64_t expected = 0;
    for (const Record& record : recording.threads[0].records) {
      ASSERT_EQ(record.arg0, expected);
      ASSERT_EQ(record.arg1, -expected++);
    }
  }
}

TEST(Recorder, AThreadMayChangeBetweenRecorders) {
  Recorder one, two;
  for (int i = 0; i < 10; ++i) {
    one.record(0, RecordKind::user, 0, 0, i);
    two.record(0, RecordKind::user, 0, 0, -i);
  }
  EXPECT_EQ(one.collect().threads.size(), 1U);
  EXPECT_EQ(one.collect().threads[0].records.size(), 10U);
  EXPECT_EQ(two.collect().threads.at(0).records.at(9).arg0, -9);
}

TEST(Recorder, BeyondTheLimitRecordsAreCountedAndDropped) {
  Recorder recorder(2048);
  for (int i = 0; i < 3000; ++i) recorder.instant(0);
  std::thread([&] { recorder.instant(0); }).join();
  Recording recording = recorder.collect();
  EXPECT_EQ(recording.threads.at(0).records.size(), 2048U);
  EXPECT_EQ(recording.threads.at(1).records.size(), 1U);  // each further thread may fill one block beyond the limit
  EXPECT_EQ(recording.dropped, 3000U - 2048U);
}

// Threads that record once and then wait hold only one block each, so the other threads get the rest.
TEST(Recorder, ThreadsThatWaitLeaveRoomToOthers) {
  Recorder recorder(2048);
  for (int i = 0; i < 4; ++i) std::thread([&] { recorder.instant(0); }).join();
  for (int i = 0; i < 3000; ++i) recorder.instant(0);
  const Recording recording = recorder.collect();
  ASSERT_EQ(recording.threads.size(), 5U);
  EXPECT_EQ(recording.threads.at(4).records.size(), 2048U);
  EXPECT_EQ(recording.dropped, 3000U - 2048U);
}

// A record with arguments takes the space of two records.
TEST(Recorder, ArgumentsGoWithTheirRecordsAcrossBlocks) {
  Recorder recorder;
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 5000; ++i) {
    expected.push_back(i % 3 == 0 ? 0 : i);
    recorder.record(7, RecordKind::copy, static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1, expected.back(), -expected.back());
  }
  const Recording recording = recorder.collect();
  ASSERT_EQ(recording.threads.at(0).records.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Record& record = recording.threads[0].records[i];
    EXPECT_EQ(record.start, i);
    EXPECT_EQ(record.arg0, expected[i]);
    EXPECT_EQ(record.arg1, -expected[i]);
    EXPECT_EQ(record.name, 7U);
  }
}

void fill(Recorder& recorder, uint32_t name, uint64_t from, int count) {
  for (int i = 0; i < count; ++i)
    recorder.record(name, RecordKind::node, from + static_cast<uint64_t>(i), from + static_cast<uint64_t>(i) + 1);
}

TEST(RecordWindow, WhatNoWindowWantsIsGivenBack) {
  Recorder recorder(0);
  {
    RecordWindow window(recorder, {});
    fill(recorder, 0, read_ticks(), 10'000);
    std::thread([&] { fill(recorder, 0, read_ticks(), 10'000); }).join();
    EXPECT_GE(recorder.held_bytes(), 20'000U * 24);
  }
  EXPECT_LE(recorder.held_bytes(), 1024U * 24 + 64);  // one more block is held: the one to which this thread writes
}

TEST(RecordWindow, TheEarliestWindowKeepsWhatLaterOnesLetGo) {
  Recorder recorder(0);
  const uint32_t name = Recorder::reserve_names(1);
  RecordWindow first(recorder, {});
  fill(recorder, name, read_ticks(), 5000);
  { RecordWindow second(recorder, {}); }
  const RecordFilter filter{.from = first.start(), .names = {{name, 0}}, .texts = {{"node", {}, {}}}};
  EXPECT_EQ(recorder.collect(filter, first).threads.at(0).records.size(), 5000U);
}

TEST(RecordWindow, HoldsTheNamesOfItsFilterOnly) {
  Recorder recorder(0);
  const uint32_t mine = Recorder::reserve_names(2), others = Recorder::reserve_names(1);
  const uint32_t range = recorder.intern("range");
  RecordWindow window(recorder, {});
  const uint64_t t = read_ticks();
  recorder.record(others, RecordKind::node, t, t + 1);
  recorder.record(mine + 1, RecordKind::node, t + 2, t + 3);
  recorder.record(others, RecordKind::node, t + 3, t + 4);  // a node of a graph that no longer exists, within a run of the profiled session
  recorder.record(mine, RecordKind::run, t + 2, t + 5);
  recorder.record(range, RecordKind::user, t, t + 6);
  const RecordFilter filter{.from = t, .names = {{mine, 0}, {mine + 1, 1}}, .texts = {{"run", {}, {}}, {"node", {}, {}}}};
  const Recording recording = recorder.collect(filter, window);
  const auto& records = recording.threads.at(0).records;
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(recording.names[records[0].name].text, "node");
  EXPECT_EQ(recording.names[records[1].name].text, "run");
  EXPECT_EQ(recording.names[records[2].name].text, "range");
  EXPECT_EQ(recording.unknown, 1U);
}

TEST(RecordWindow, WhenFullTheOldestGoOrTheNewAreLeftOut) {
  for (bool keep_last : {false, true}) {
    Recorder recorder(0);
    const uint32_t name = Recorder::reserve_names(1);
    RecordWindow window(recorder, {.max_records = 4096, .keep_last = keep_last});
    const uint64_t from = read_ticks();
    fill(recorder, name, from, 10'000);
    const RecordFilter filter{.from = 0, .names = {{name, 0}}, .texts = {{"node", {}, {}}}};
    const Recording recording = recorder.collect(filter, window);
    const auto& records = recording.threads.at(0).records;
    EXPECT_EQ(records.size() + recording.dropped, 10'000U);
    EXPECT_GE(records.size(), 3 * 1024U);
    EXPECT_LE(records.size(), 4096U);
    if (keep_last) {
      EXPECT_EQ(records.back().start, from + 9999);
      EXPECT_EQ(recording.complete_from, records.front().start);  // the time at which the last discarded record ended
    } else {
      EXPECT_EQ(records.front().start, from);
      EXPECT_EQ(recording.complete_until, records.back().start + 1);
    }
  }
}

std::vector<Record> ranges_named(const Recording& recording, const std::string& name) {
  std::vector<Record> ranges;
  for (const Recording::Thread& thread : recording.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::user && recording.names[record.name].text == name) ranges.push_back(record);
  return ranges;
}

// Records beyond the window's limit are lost, among them ends of ranges. A range without an end is shown up to the last recorded time.
TEST(RecordWindow, RangesWhoseEndsAreLostLastNoLongerThanTheRecording) {
  Recorder recorder(0);
  const uint32_t serve = recorder.intern("serve"), batch = recorder.intern("batch");
  RecordWindow window(recorder, {.max_records = 2048});
  const uint64_t from = window.start();
  recorder.begin(serve, RecordKind::user, from);
  for (uint64_t i = 1; i <= 5000; ++i) {
    recorder.begin(batch, RecordKind::user, from + 10 * i);
    recorder.record(batch, RecordKind::user, from + 10 * i, from + 10 * i + 5);
  }
  const Recording recording = recorder.collect({.from = from}, window);
  EXPECT_EQ(recording.dropped, 10'001U - 2048U);
  const std::vector<Record> batches = ranges_named(recording, "batch");
  EXPECT_EQ(batches.size(), 1023U) << "the next one began, and its end is lost";
  for (const Record& range : batches) ASSERT_EQ(range.end - range.start, 5U);
  const std::vector<Record> around = ranges_named(recording, "serve");
  ASSERT_EQ(around.size(), 1U);
  EXPECT_EQ(around[0].end, from + 10 * 1024) << "where the first event is missing";
}

TEST(RecordWindow, ALongRangeWhoseEndIsLostLeavesTheRunsInItComplete) {
  Recorder recorder(0);
  const uint32_t run = Recorder::reserve_names(1), range = recorder.intern("range");
  RecordWindow window(recorder, {.max_records = 1024});
  const uint64_t from = window.start();
  recorder.begin(range, RecordKind::user, from);
  for (uint64_t i = 0; i < 1023; ++i) recorder.record(run, RecordKind::run, from + 10 * i, from + 10 * i + 5);
  recorder.record(range, RecordKind::user, from, from + 20'000);
  const Recording recording = recorder.collect({.from = from, .names = {{run, 0}}, .texts = {{"run", {}, {}}}}, window);
  EXPECT_EQ(recording.dropped, 1U);
  EXPECT_EQ(recording.complete_until, from + 10 * 1022 + 5);
}

TEST(RecordWindow, ARangeWhoseBeginTheRingDroppedIsThereWhenItHasEnded) {
  Recorder recorder(0);
  const uint32_t serve = recorder.intern("serve"), batch = recorder.intern("batch");
  RecordWindow window(recorder, {.max_records = 4096, .keep_last = true});
  const uint64_t from = window.start();
  recorder.begin(serve, RecordKind::user, from);
  for (uint64_t i = 1; i <= 5000; ++i) recorder.record(batch, RecordKind::user, from + 10 * i, from + 10 * i + 5);
  EXPECT_TRUE(ranges_named(recorder.collect({.from = from}, window), "serve").empty());
  recorder.record(serve, RecordKind::user, from, from + 60'000);
  const Recording recording = recorder.collect({.from = from}, window);
  const std::vector<Record> around = ranges_named(recording, "serve");
  ASSERT_EQ(around.size(), 1U);
  EXPECT_EQ(around[0].start, from);
  EXPECT_EQ(around[0].end, from + 60'000);
  EXPECT_EQ(ranges_named(recording, "batch").size() + recording.dropped, 5000U + 1) << "its begin is counted";
}

// Compares the number of collected records with the number that were written: the recorder must neither lose nor invent any.
TEST(RecordWindow, WindowsComeAndGoWhileThreadsRecord) {
  Recorder recorder(0);
  const uint32_t name = Recorder::reserve_names(1);
  constexpr int kThreads = 8, kRecords = 20'000;
  RecordWindow all(recorder, {});
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kRecords; ++i) {
        const uint64_t now = read_ticks();
        recorder.record(name, RecordKind::node, now, now, t + 1, i);
      }
      --running;
    });
  const RecordFilter filter{.from = all.start(), .names = {{name, 0}}, .texts = {{"node", {}, {}}}};
  while (running > 0) {
    RecordWindow other(recorder, {.max_records = 1'000'000});
    static_cast<void>(recorder.collect(filter, other));
  }
  for (auto& thread : threads) thread.join();
  const Recording recording = recorder.collect(filter, all);
  EXPECT_EQ(recording.dropped, 0U);
  std::vector<int64_t> next(kThreads + 1, 0);
  for (const auto& thread : recording.threads)
    for (const Record& record : thread.records) ASSERT_EQ(record.arg1, next[static_cast<size_t>(record.arg0)]++);
  for (int t = 1; t <= kThreads; ++t) EXPECT_EQ(next[static_cast<size_t>(t)], kRecords);
}

// Threads that begin ranges. The next thread ends each of them, and some ranges never end.
class RangesAcrossThreads {
 public:
  static constexpr int kThreads = 8, kRanges = 20'000;
  explicit RangesAcrossThreads(Recorder& recorder) : recorder_(recorder) {
    for (int t = 0; t < kThreads; ++t) names_[index(t)] = recorder.intern("range of thread " + std::to_string(t));
    for (int t = 0; t < kThreads; ++t) threads_.emplace_back([this, t] { work(t); });
  }
  ~RangesAcrossThreads() { join(); }
  bool is_running() const { return running_ > 0; }
  void join() {
    may_end_ = true;
    may_end_.notify_all();
    threads_.clear();
  }
  uint32_t name(int thread) const { return names_[index(thread)]; }

 private:
  static size_t index(int thread) { return static_cast<size_t>(thread % kThreads); }
  void work(int t) {
    uint64_t last = 0;
    for (int i = 0; i < kRanges; ++i) {
      last = std::max(read_ticks(), last + 1);  // gives each record a start that is unique within the thread's name
      recorder_.begin(name(t), RecordKind::user, last);
      handed_on_[index(t)].exchange(last);  // a range that is still in this slot when the next one begins is never ended
      if (const uint64_t start = handed_on_[index(t + kThreads - 1)].exchange(0))
        recorder_.record(name(t + kThreads - 1), RecordKind::user, start, std::max(read_ticks(), start));
    }
    --running_;
    may_end_.wait(false);  // under the thread sanitizer, threads that ended before a fork leak in the child
  }

  Recorder& recorder_;
  std::array<uint32_t, kThreads> names_{};
  std::array<std::atomic<uint64_t>, kThreads> handed_on_{};  // the start of the last range of each thread; 0 if there is none
  std::atomic<int> running_{kThreads};
  std::atomic<bool> may_end_{false};
  std::vector<std::jthread> threads_;
};

/// Returns how many ranges of that name a recording contains; -1 if it contains one of them twice.
int count_ranges(const Recording& recording, const std::string& name) {
  std::set<uint64_t> starts;
  for (const Recording::Thread& thread : recording.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::user && recording.names[record.name].text == name && !starts.insert(record.start).second) return -1;
  return static_cast<int>(starts.size());
}

#if defined(__unix__)
/// Returns true if a forked child that records 100 ranges, and ends every second one, sees exactly these ranges.
bool a_forked_child_records_its_ranges(Recorder& recorder) {
  const pid_t child = fork();
  if (child == 0) {
    const uint32_t name = recorder.intern("range of a child");
    RecordWindow window(recorder, {});
    for (uint64_t i = 0; i < 100; ++i) {
      const uint64_t start = window.start() + i;
      recorder.begin(name, RecordKind::user, start);
      if (i % 2 == 0) recorder.record(name, RecordKind::user, start, read_ticks());
    }
    _exit(count_ranges(recorder.collect({.from = window.start()}, window), "range of a child") == 100 ? 0 : 1);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
#endif

// Compares the number of ranges that threads began with the number that was collected, for a window in memory, one that streams to a file,
// and short-lived ones.
TEST(RecordWindow, RangesAcrossThreadsAreNeitherLostNorInvented) {
  Recorder& recorder = Recorder::of_process();
  RecordWindow all(recorder, {}), streaming(recorder, {.streams = true});
  RangesAcrossThreads ranges(recorder);
  std::array<int, RangesAcrossThreads::kThreads> written{};
  uint64_t dropped = 0;
  const auto drain = [&] {
    for (const DrainedThread& thread : streaming.drain(dropped))
      each_record(thread.events, [&](const Record& record) {
        for (int t = 0; t < RangesAcrossThreads::kThreads; ++t)
          if (record.kind == RecordKind::begin && record.name == ranges.name(t)) ++written[static_cast<size_t>(t)];
      });
  };
  const auto count_all = [&](const RecordWindow& window, int t) {
    return count_ranges(recorder.collect({.from = window.start()}, window), "range of thread " + std::to_string(t));
  };
  for (int round = 0; ranges.is_running(); ++round) {
    RecordWindow other(recorder, {.max_records = 1'000'000});
    drain();
    ASSERT_GE(count_all(other, round % RangesAcrossThreads::kThreads), 0);
#if defined(__unix__)
    ASSERT_TRUE(a_forked_child_records_its_ranges(recorder));
#endif
  }
  ranges.join();
  drain();
  EXPECT_EQ(dropped, 0U);
  for (int t = 0; t < RangesAcrossThreads::kThreads; ++t) {
    EXPECT_EQ(count_all(all, t), RangesAcrossThreads::kRanges);
    EXPECT_EQ(written[static_cast<size_t>(t)], RangesAcrossThreads::kRanges);
  }
}

TEST(Recording, TimesFollowAClockThatChangesItsSpeed) {
  Recording recording;
  recording.start_ticks = 1500;
  recording.ns_per_tick = 1;
  EXPECT_EQ(recording.to_ns(1700), 200);
  // Two nanoseconds per tick up to tick 2000, then four.
  recording.anchors = {{1000, 50, 0}, {2000, 2050, 0}, {3000, 6050, 0}};
  EXPECT_EQ(recording.to_ns(1500), 0);
  EXPECT_EQ(recording.to_ns(1750), 500);
  EXPECT_EQ(recording.to_ns(2000), 1000);
  EXPECT_EQ(recording.to_ns(2500), 3000);
  // Beyond the anchors, to_ns() uses the average rate of them all.
  EXPECT_EQ(recording.to_ns(3100), 5100);
  EXPECT_EQ(recording.to_ns(900), -1100);
}

TEST(RecordWindow, NotesTheWallClockWhileItRecords) {
  Recorder recorder;
  RecordWindow window(recorder, {});
  const RecordFilter filter{.from = window.start()};
  // A new recorder records an anchor (ticks and clock) every few milliseconds until it knows its tick rate.
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    recorder.anchor_if_due();
  }
  const Recording recording = recorder.collect(filter, window);
  ASSERT_GE(recording.anchors.size(), 3U);
  for (size_t i = 1; i < recording.anchors.size(); ++i) {
    const ClockAnchor &before = recording.anchors[i - 1], &anchor = recording.anchors[i];
    EXPECT_LT(before.ticks, anchor.ticks);
    EXPECT_LT(before.steady_ns, anchor.steady_ns);
    EXPECT_NEAR(recording.to_ns(anchor.ticks) - recording.to_ns(before.ticks), static_cast<double>(anchor.steady_ns - before.steady_ns), 1);
  }
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(static_cast<double>(now - recording.anchors.back().unix_ns), 0, 1e9);
  EXPECT_EQ(recording.start_unix_ns, recording.anchors[0].unix_ns - static_cast<int64_t>(recording.to_ns(recording.anchors[0].ticks)));
}

TEST(Recorder, TicksConvertToTheSteadyClocksNanoseconds) {
  Recorder recorder;
  auto clock = [] { return std::chrono::steady_clock::now(); };
  auto before_start = clock();
  uint64_t start = read_ticks();
  auto after_start = clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto before_end = clock();
  uint64_t end = read_ticks();
  auto after_end = clock();
  Recording recording = recorder.collect();
  double measured = recording.to_ns(end) - recording.to_ns(start);
  auto ns = [](auto duration) { return std::chrono::duration<double, std::nano>(duration).count(); };
  // The clock readings around each tick reading bound the duration. The tick rate may be off by a thousandth.
  EXPECT_GE(measured, ns(before_end - after_start) * 0.999);
  EXPECT_LE(measured, ns(after_end - before_start) * 1.001);
}

}  // namespace
}  // namespace treadle
