#include "profile/writers/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "profile/writers/flame.h"

namespace treadle::profile {
namespace {

using Json = nlohmann::json;

// A recording with exact times: a tick is a nanosecond.
Recording made_up() {
  Recording recording;
  recording.names = {{"run", {}, {}}, {"conv \"a\"\n\xff", "flops", "bytes"}, {"memory", "bytes", {}}};
  recording.start_ticks = 1000;
  recording.threads.push_back({0,
                               77,
                               "main",
                               {{2001, 3500, 10, 20, 1, RecordKind::node},
                                {1000, 4000, 0, 0, 0, RecordKind::run},
                                {4100, 4100, 64, 0, 2, RecordKind::counter},
                                {4200, 4200, 5, 6, 1, RecordKind::instant}}});
  return recording;
}

std::string chrome_of(const Recording& recording) { return to_chrome_trace({.recording = &recording}); }

std::vector<Json> events_of(const Json& trace, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) events.push_back(event);
  return events;
}

TEST(ChromeTrace, RangesHaveMicrosecondsWithNanosecondDigits) {
  Json trace = Json::parse(chrome_of(made_up()));
  auto ranges = events_of(trace, "X");
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0]["name"], "ProfilerStep#0");
  EXPECT_EQ(ranges[0]["cat"], "user_annotation");
  EXPECT_EQ(ranges[0]["ts"], 0.0);
  EXPECT_EQ(ranges[0]["dur"], 3.0);
  EXPECT_EQ(ranges[0]["args"]["range"], "run");
  EXPECT_EQ(ranges[1]["ts"], 1.001);
  EXPECT_EQ(ranges[1]["dur"], 1.499);
  EXPECT_EQ(ranges[1]["args"]["flops"], 10);
  EXPECT_EQ(ranges[1]["args"]["bytes"], 20);
  EXPECT_EQ(ranges[1]["tid"], ranges[0]["tid"]);
}

TEST(ChromeTrace, NamesThatAreNotUtf8StillGiveValidJson) {
  Json trace = Json::parse(chrome_of(made_up()));
  EXPECT_EQ(events_of(trace, "X")[1]["name"], "conv \"a\"\n\xEF\xBF\xBD");
}

TEST(ChromeTrace, CountersInstantsAndThreadNamesAreWritten) {
  Json trace = Json::parse(chrome_of(made_up()));
  auto counters = events_of(trace, "C");
  ASSERT_EQ(counters.size(), 1U);
  EXPECT_EQ(counters[0]["name"], "memory");
  EXPECT_EQ(counters[0]["args"], (Json{{"bytes", 64}}));
  auto instants = events_of(trace, "i");
  ASSERT_EQ(instants.size(), 1U);
  EXPECT_EQ(instants[0]["s"], "t");
  bool named = false;
  for (const Json& event : events_of(trace, "M")) named |= event["name"] == "thread_name" && event["args"]["name"] == "main 77";
  EXPECT_TRUE(named);
}

TEST(ChromeTrace, RangesOnOneRowNest) {
  Recording recording;
  recording.names = {{"r", {}, {}}};
  recording.threads.push_back({0, 1, "t", {}});
  uint64_t random = 12345;
  for (int i = 0; i < 300; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    uint64_t start = (random >> 33) % 10000;
    recording.threads[0].records.push_back({start, start + (random >> 50) % 500, 0, 0, 0, RecordKind::user});
  }
  Json trace = Json::parse(chrome_of(recording));
  std::map<int64_t, std::vector<std::pair<double, double>>> rows;
  for (const Json& event : events_of(trace, "X"))
    rows[event["tid"]].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  EXPECT_GT(rows.size(), 1U);
  size_t ranges = 0;
  for (const auto& [tid, list] : rows) {
    ranges += list.size();
    for (auto [a, b] : list)
      for (auto [c, d] : list) EXPECT_FALSE(a < c - 1e-9 && c < b - 1e-9 && b < d - 1e-9) << "overlap on row " << tid;
  }
  EXPECT_EQ(ranges, 300U);
}

TEST(ChromeTrace, RecordsOfSeveralThreadsAreCounted) {
  Recorder recorder;
  uint32_t name = recorder.intern("work");
  { RecordScope scope(&recorder, name, RecordKind::node); }
  std::thread([&] { RecordScope scope(&recorder, name, RecordKind::chunk); }).join();
  Json trace = Json::parse(chrome_of(recorder.collect()));
  EXPECT_EQ(events_of(trace, "X").size(), 2U);
  EXPECT_EQ(trace["treadle"]["dropped_records"], 0);
}

TEST(ChromeTrace, WhatBeganBeforeTheProfileIsLeftOut) {
  const Recording recording = made_up();
  const Json trace = Json::parse(to_chrome_trace({.recording = &recording, .first_ticks = 2000}));
  EXPECT_EQ(events_of(trace, "X").size(), 1U);
}

TEST(Flame, ARangeCountsWithoutTheOnesInIt) {
  const Recording recording = made_up();
  EXPECT_EQ(to_folded_stacks({.recording = &recording}), "main 77;run 1501\nmain 77;run;conv \"a\" \xEF\xBF\xBD 1499\n");
}

// Two steps of a forward node, and of the backward node that computes its gradient; the second step runs on two threads.
TEST(ChromeTrace, ArrowsLeadFromForwardToBackwardNodesOfTheSameRun) {
  Recording recording;
  recording.names = {{"Tanh f", {}, {}}, {"Mul b", {}, {}}};
  recording.threads.push_back(
      {0,
       77,
       "main",
       {{100, 200, 0, 0, 0, RecordKind::node, 1}, {300, 400, 0, 0, 1, RecordKind::node, 1}, {500, 600, 0, 0, 0, RecordKind::node, 2}}});
  recording.threads.push_back({1, 78, "worker", {{700, 800, 0, 0, 1, RecordKind::node, 2}}});
  std::vector<ProfiledNode> nodes(2);
  nodes[0].sequence = nodes[1].sequence = 4;
  nodes[1].forward = {0};
  const std::unordered_map<uint32_t, int32_t> node_of{{0, 0}, {1, 1}};
  const TraceView view{.recording = &recording, .nodes = &nodes, .node_of = &node_of};
  const Json trace = Json::parse(to_chrome_trace(view));
  std::vector<std::tuple<int, double, int>> begins, ends;
  for (const Json& event : events_of(trace, "s")) begins.emplace_back(event["id"], event["ts"], event["tid"]);
  for (const Json& event : events_of(trace, "f")) ends.emplace_back(event["id"], event["ts"], event["tid"]);
  EXPECT_EQ(begins, (std::vector<std::tuple<int, double, int>>{{1, 0.1, 0}, {2, 0.5, 0}}));
  EXPECT_EQ(ends, (std::vector<std::tuple<int, double, int>>{{1, 0.3, 0}, {2, 0.7, 100}}));
  for (const Json& event : events_of(trace, "X")) {
    EXPECT_EQ(event["args"]["Sequence number"], 4);
    EXPECT_EQ(event["args"].contains("Fwd thread id"), event["name"] == "Mul b");
  }
}

TEST(ChromeTrace, ARowHasThePoolsStates) {
  Recording recording;
  recording.names = {{"running", {}, {}}, {"asleep", {}, {}}};
  recording.threads.push_back({0, 77, "worker", {{100, 200, 0, 0, 0, RecordKind::pool}, {200, 400, 0, 0, 1, RecordKind::pool}}});
  TraceView view{.recording = &recording, .pool_runs = true};
  const Json trace = Json::parse(to_chrome_trace(view));
  ASSERT_EQ(events_of(trace, "X").size(), 2U);
  EXPECT_EQ(events_of(trace, "X")[0]["cat"], "thread_pool");
  view.pool_runs = false;
  EXPECT_EQ(to_folded_stacks(view), "worker 77;asleep 200\n");
}

}  // namespace
}  // namespace treadle::profile
