#include "core/trace/node_counters.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace treadle {
namespace {

TEST(NodeCounters, BucketsHoldTheTimesBetweenTheirBounds) {
  std::vector<uint64_t> times{0, 1, 7, 8, 9, 10, 15, 16, 1000, 123'456'789};
  for (int bit = 3; bit < 41; ++bit)
    for (uint64_t near : {(uint64_t{1} << bit) - 1, uint64_t{1} << bit, (uint64_t{1} << bit) + 1}) times.push_back(near);
  for (uint64_t ticks : times) {
    const size_t bucket = TickBuckets::of(ticks);
    ASSERT_LT(bucket, TickBuckets::kCount);
    EXPECT_LE(TickBuckets::low(bucket), ticks);
    if (bucket + 1 < TickBuckets::kCount) {
      EXPECT_GT(TickBuckets::low(bucket + 1), ticks);
    }
  }
  EXPECT_EQ(TickBuckets::of(UINT64_MAX), TickBuckets::kCount - 1);
  for (size_t b = 8; b + 1 < TickBuckets::kCount; ++b) EXPECT_LE(4 * TickBuckets::low(b + 1), 5 * TickBuckets::low(b));
}

TEST(NodeCounters, TheListSumsAllFrames) {
  NodeCounterList list;
  NodeCounters &first = list.make(2), &second = list.make(2);
  first.add(0, 100);
  second.add_shared(0, 300);
  second.add(1, 5);
  EXPECT_EQ(list.sum(0).total, 400U);
  EXPECT_EQ(list.sum(0).counts[TickBuckets::of(100)], 1U);
  EXPECT_EQ(list.sum(0).counts[TickBuckets::of(300)], 1U);
  EXPECT_EQ(list.sum(1).total, 5U);
  list.reset();
  EXPECT_EQ(list.sum(0).total, 0U);
  EXPECT_EQ(list.sum(0).counts[TickBuckets::of(100)], 0U);
}

TEST(NodeCounters, TimesThatChangeAreAllCounted) {
  NodeCounterList list;
  NodeCounters& counters = list.make(2);
  std::vector<uint64_t> expected(TickBuckets::kCount, 0);
  uint64_t total = 0, ticks = 1;
  for (int i = 0; i < 1000; ++i) {
    ticks = i % 3 == 0 ? (ticks * 7919) % 100'003 : ticks;  // some times repeat, so that both counters add to one bucket
    i % 5 == 0 ? counters.add_shared(1, ticks) : counters.add(1, ticks);
    ++expected[TickBuckets::of(ticks)];
    total += ticks;
  }
  const TickHistogram sum = list.sum(1);
  EXPECT_EQ(sum.total, total);
  for (size_t b = 0; b < TickBuckets::kCount; ++b) EXPECT_EQ(sum.counts[b], expected[b]) << b;
  EXPECT_EQ(list.sum(0).total, 0U);
}

TEST(NodeCounters, AWriterCountsEachRunOnce) {
  NodeCounterList list;
  NodeCounters& counters = list.make(3);
  std::vector<uint64_t> totals(3, 0);
  for (uint64_t runs : {0U, 1U, 63U, 64U, 65U, 1000U}) {
    NodeCountWriter writer(&counters);
    for (uint64_t i = 0; i < runs; ++i) {
      writer.add(i % 2, i);
      totals[i % 2] += i;
    }
  }
  uint64_t calls = 0;
  for (size_t node = 0; node < totals.size(); ++node) {
    const TickHistogram sum = list.sum(node);
    EXPECT_EQ(sum.total, totals[node]);
    for (uint64_t count : sum.counts) calls += count;
  }
  EXPECT_EQ(calls, 1193U);
  NodeCountWriter(nullptr).add(0, 1);  // without counters, add() does nothing
}

TEST(NodeCounters, NothingIsLostBetweenThreads) {
  NodeCounterList list;
  NodeCounters& counters = list.make(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 10'000; ++i) counters.add_shared(0, i % 7);
    });
  for (std::thread& thread : threads) thread.join();
  uint64_t calls = 0;
  for (uint64_t count : list.sum(0).counts) calls += count;
  EXPECT_EQ(calls, 40'000U);
}

}  // namespace
}  // namespace treadle
