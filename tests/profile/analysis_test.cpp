#include "profile/analysis/analysis.h"

#include <gtest/gtest.h>

#include "treadle/profile_report.h"

namespace treadle::profile {
namespace {

constexpr uint32_t kRun = 0, kConv = 1, kLoop = 2, kBody = 3, kWait = 4, kGone = 5, kPack = 6, kCompute = 7, kEpilogue = 8, kRunning = 9,
                   kNoWork = 10, kBarrier = 11, kAsleep = 12;

Record node(uint32_t name, uint64_t start, uint64_t end, uint16_t run = 1) { return {start, end, 0, 0, name, RecordKind::node, run}; }
Record run(uint64_t start, uint64_t end, uint16_t number = 1) { return {start, end, 0, 0, kRun, RecordKind::run, number}; }

Record phase(uint32_t name, uint64_t start, uint64_t end, uint16_t run = 1, uint32_t of = kConv) {
  return {start, end, of, 1, name, RecordKind::phase, run};
}
Record state(uint32_t name, uint64_t start, uint64_t end) { return {start, end, 0, 0, name, RecordKind::pool, 0}; }
Record part(uint64_t start, uint64_t end) { return {start, end, 0, 0, kConv, RecordKind::chunk, 1}; }

Profile analyzed(std::vector<std::vector<Record>> threads, uint64_t first = 0) {
  Recording recording;  // in this recording, a tick is a nanosecond
  for (const char* name : {"run", "Conv c", "Loop l", "Add a", "wait", "Add gone", "pack", "compute", "epilogue", "running",
                           "no ready work", "barrier", "asleep"})
    recording.names.push_back({name, {}, {}});
  for (auto& records : threads) {
    const auto index = static_cast<uint32_t>(recording.threads.size());
    recording.threads.push_back({index, 100 + index, "worker", std::move(records)});
  }
  recording.dropped = 3;
  Profile profile;
  profile.nodes.resize(3);
  analyze(recording, {.run = kRun, .node = {{kConv, 0}, {kLoop, 1}, {kBody, 2}}, .intervals = {{first, UINT64_MAX}}}, profile);
  return profile;
}

void expect_sum(const ProfiledRun& r) {
  EXPECT_DOUBLE_EQ(r.kernel_ns + r.wait_ns + r.before_ns + r.between_ns + r.after_ns, r.duration_ns);
}

TEST(ProfileAnalysis, PartsOfARunSumToIt) {
  const Profile p = analyzed({{node(kConv, 110, 150), node(kConv, 160, 190), run(100, 205)}});
  ASSERT_EQ(p.runs.size(), 1U);
  const ProfiledRun& r = p.runs[0];
  EXPECT_EQ(r.duration_ns, 105);
  EXPECT_EQ(r.before_ns, 10);
  EXPECT_EQ(r.kernel_ns, 70);
  EXPECT_EQ(r.between_ns, 10);
  EXPECT_EQ(r.after_ns, 15);
  EXPECT_EQ(r.events, 3);
  expect_sum(r);
  EXPECT_EQ(p.nodes[0].calls, 2);
  EXPECT_EQ(p.nodes[0].self_ns, std::vector<double>{70});
  EXPECT_EQ(p.events_lost, 3U);
}

TEST(ProfileAnalysis, ALoopHasOnlyTheTimeAroundItsBodysNodes) {
  const Profile p = analyzed({{node(kBody, 20, 30), node(kBody, 40, 60), node(kLoop, 10, 70), run(0, 80)}});
  EXPECT_EQ(p.nodes[1].self_ns, std::vector<double>{30});
  EXPECT_EQ(p.nodes[2].self_ns, std::vector<double>{30});
  EXPECT_EQ(p.nodes[2].calls, 2);
  EXPECT_EQ(p.runs[0].kernel_ns, 60);
  EXPECT_EQ(p.runs[0].node_ns, 60);
  expect_sum(p.runs[0]);
}

TEST(ProfileAnalysis, NodesAtOnceCountOnceInTheRun) {
  const Profile p = analyzed({{node(kConv, 10, 50), run(0, 100)}, {node(kBody, 30, 80)}});
  EXPECT_EQ(p.runs[0].kernel_ns, 70);
  EXPECT_EQ(p.runs[0].node_ns, 90);
  EXPECT_EQ(p.runs[0].between_ns, 0);
  EXPECT_EQ(p.median_run.size(), 2U);
  EXPECT_EQ(p.median_run[1].thread, 1);
  expect_sum(p.runs[0]);
}

// The graph is a -> b, a -> c, {b, c} -> d, on two threads; `view` is a view of b.
TEST(ProfileAnalysis, NodesAreReadyWhenTheLastOfTheirInputsIsThere) {
  Recording recording;  // in this recording, a tick is a nanosecond
  for (const char* name : {"run", "a", "b", "c", "d"}) recording.names.push_back({name, {}, {}});
  recording.threads.push_back({0,
                               100,
                               "main",
                               {node(1, 1010, 1500), node(2, 1520, 6000), node(4, 9000, 9500), run(1000, 9600), node(1, 10010, 10020),
                                node(2, 10020, 10030), node(3, 10030, 10040), node(4, 10040, 10050), run(10000, 10060)}});
  recording.threads.push_back({1, 101, "helper", {node(3, 3500, 7000)}});
  Profile profile;
  const auto step = [&](const std::vector<std::string>& inputs, const std::string& output) {
    ProfiledNode made;
    for (const std::string& input : inputs) made.inputs.push_back({.name = input, .shares = input == "view" ? "b" : ""});
    made.outputs.push_back({.name = output});
    profile.steps.push_back(static_cast<int32_t>(profile.nodes.size()));
    profile.nodes.push_back(std::move(made));
  };
  step({"x"}, "a"), step({"a"}, "b"), step({"a"}, "c"), step({"view", "c"}, "d");
  std::unordered_map<const Record*, int64_t> waited;
  analyze(recording, {.run = 0, .node = {{1, 0}, {2, 1}, {3, 2}, {4, 3}}}, profile, &waited);
  ASSERT_EQ(profile.runs.size(), 2U);
  EXPECT_EQ(profile.nodes[0].ready_ns, (std::vector<double>{10, 10})) << "where nodes begin";
  EXPECT_EQ(profile.nodes[1].ready_ns, (std::vector<double>{500, 20}));
  EXPECT_EQ(profile.nodes[2].ready_ns, (std::vector<double>{500, 20}));
  EXPECT_EQ(profile.nodes[3].ready_ns, (std::vector<double>{6000, 40}));
  EXPECT_EQ(profile.nodes[0].waited_ns, (std::vector<double>{0, 0}));
  EXPECT_EQ(profile.nodes[1].waited_ns, (std::vector<double>{20, 0}));
  EXPECT_EQ(profile.nodes[2].waited_ns, (std::vector<double>{2000, 10}));
  EXPECT_EQ(profile.nodes[3].waited_ns, (std::vector<double>{2000, 0}));
  EXPECT_EQ(profile.runs[0].waited_ns, 4020);
  EXPECT_EQ(profile.runs[1].waited_ns, 10);
  // Traces show waits of a microsecond or more.
  EXPECT_EQ(waited, (std::unordered_map<const Record*, int64_t>{{&recording.threads[1].records[0], 2000},
                                                                {&recording.threads[0].records[2], 2000}}));
  for (const ProfiledEvent& event : profile.slowest_run)
    EXPECT_EQ(event.waited_ns, profile.nodes[static_cast<size_t>(event.node)].waited_ns[0]);
}

// The run was of another graph of the same client, so the nodes of the main graph never had their inputs.
TEST(ProfileAnalysis, NodesThatDidNotRunWereNotReady) {
  const Profile p = [] {
    Recording recording;
    for (const char* name : {"run", "a", "other"}) recording.names.push_back({name, {}, {}});
    recording.threads.push_back({0, 100, "main", {node(2, 10, 20), run(0, 30)}});
    Profile profile;
    profile.nodes.resize(2);
    profile.steps = {0};
    analyze(recording, {.run = 0, .node = {{1, 0}, {2, 1}}}, profile);
    return profile;
  }();
  EXPECT_EQ(p.nodes[0].ready_ns, std::vector<double>{-1});
  EXPECT_TRUE(p.nodes[1].ready_ns.empty());
  EXPECT_EQ(p.runs[0].waited_ns, 0);
  EXPECT_EQ(profile_to_json(report_profile(p)).find("ready_ms"), std::string::npos);
}

TEST(ProfileAnalysis, WaitingIsApartFromDispatch) {
  const Profile p = analyzed({{node(kConv, 10, 20), {20, 45, 0, 0, kWait, RecordKind::wait, 1}, node(kConv, 50, 60), run(0, 60)}});
  EXPECT_EQ(p.runs[0].wait_ns, 25);
  EXPECT_EQ(p.runs[0].between_ns, 5);
  EXPECT_EQ(p.runs[0].after_ns, 0);
  expect_sum(p.runs[0]);
}

TEST(ProfileAnalysis, RunsOfOtherThreadsKeepTheirNodes) {
  const Profile p = analyzed({{node(kConv, 10, 20), run(0, 50)}, {node(kConv, 12, 40, 2), run(5, 60, 2)}});
  EXPECT_EQ(p.nodes[0].self_ns, (std::vector<double>{10, 28}));
  EXPECT_EQ(p.events_unknown, 0);
}

TEST(ProfileAnalysis, AHelpersNodeIsOfTheRunItWorkedFor) {
  const Profile p = analyzed({{run(0, 50)}, {run(40, 90, 2)}, {node(kConv, 10, 20), node(kConv, 42, 48, 2)}});
  EXPECT_EQ(p.nodes[0].self_ns, (std::vector<double>{10, 6}));
  EXPECT_EQ(p.events_unknown, 0);
}

// A run that began before the profile, or has not ended, has no record.
TEST(ProfileAnalysis, NodesOfRunsWithoutARecordAreNobodys) {
  const Profile p = analyzed({{run(0, 50)}, {node(kConv, 10, 20, 2)}, {node(kConv, 42, 48)}});
  EXPECT_EQ(p.nodes[0].calls, 1);
  EXPECT_EQ(p.nodes[0].self_ns, std::vector<double>{6});
  EXPECT_EQ(p.events_unknown, 0);
}

// Numbers of runs have 16 bits, so they repeat.
TEST(ProfileAnalysis, RunsOfTheSameNumberAreToldApartByTheirTimes) {
  const Profile p = analyzed({{node(kConv, 10, 20), run(0, 50), node(kConv, 70, 95), run(60, 100)}});
  EXPECT_EQ(p.nodes[0].self_ns, (std::vector<double>{10, 25}));
}

TEST(ProfileAnalysis, EarlierRunsAndForgottenGraphsAreLeftOut) {
  const Profile p = analyzed({{node(kConv, 10, 20), run(0, 30), node(kGone, 110, 120), node(kConv, 120, 125), run(100, 130)}}, 50);
  ASSERT_EQ(p.runs.size(), 1U);
  EXPECT_EQ(p.nodes[0].self_ns, std::vector<double>{5});
  EXPECT_EQ(p.events_unknown, 1);
}

TEST(ProfileAnalysis, WhatOnlyTheRunsKnewIsTheMeanOfTheCalls) {
  Record small = node(kConv, 10, 20), large = node(kConv, 20, 30);
  small.arg0 = 100, small.arg1 = 40;
  large.arg0 = 300, large.arg1 = 80;
  const Profile p = analyzed({{small, large, node(kBody, 30, 35), run(0, 50)}});
  EXPECT_EQ(p.nodes[0].flops, 200);
  EXPECT_EQ(p.nodes[0].bytes, 60);
  EXPECT_FALSE(p.nodes[2].flops);
}

TEST(ProfileAnalysis, PhasesOfKernelsAreOfAllThreadsAndWithoutThoseWithin) {
  const Profile p = analyzed({{phase(kPack, 12, 20), phase(kEpilogue, 30, 35), phase(kCompute, 20, 48), node(kConv, 10, 50), run(0, 60)},
                              {phase(kEpilogue, 25, 27), phase(kCompute, 22, 40), part(21, 41)},
                              {phase(kPack, 15, 25, 2), phase(kPack, 16, 20, 1, kGone)}});
  ASSERT_EQ(p.runs.size(), 1U);
  ASSERT_EQ(p.nodes[0].kernel_phases.size(), 3U);
  const std::vector<ProfiledKernelPhase>& phases = p.nodes[0].kernel_phases;
  EXPECT_EQ(phases[0].name, "pack");
  EXPECT_EQ(phases[0].self_ns, std::vector<double>{8});
  EXPECT_EQ(phases[0].calls, 1);
  EXPECT_EQ(phases[1].name, "epilogue");
  EXPECT_EQ(phases[1].self_ns, std::vector<double>{5 + 2});
  EXPECT_EQ(phases[1].calls, 2);
  EXPECT_EQ(phases[2].name, "compute");
  EXPECT_EQ(phases[2].self_ns, std::vector<double>{28 - 5 + 18 - 2});
  // Phases are not nodes, so they do not reduce the time of the nodes.
  EXPECT_EQ(p.nodes[0].self_ns, std::vector<double>{40});
  EXPECT_EQ(p.nodes[0].calls, 1);
  EXPECT_EQ(p.runs[0].kernel_ns, 40);
  EXPECT_EQ(p.runs[0].events, 2 + 6);
  expect_sum(p.runs[0]);
  std::vector<int32_t> timeline;
  for (const ProfiledEvent& event : p.median_run) timeline.push_back(event.phase);
  EXPECT_EQ(timeline, (std::vector<int32_t>{-1, 0, 2, -1, 2, 1, 1}));
}

// Of a state that began before the run or ends after it, only the part within the run counts.
TEST(ProfileAnalysis, StatesOfThePoolSumToTheRuns) {
  const Profile p =
      analyzed({{state(kBarrier, 40, 50), node(kConv, 10, 50), state(kNoWork, 60, 70), run(0, 100)},
                {state(kNoWork, 0, 12), state(kBarrier, 30, 35), state(kRunning, 12, 45), state(kNoWork, 45, 80), state(kAsleep, 80, 130)},
                {state(kRunning, 90, 150)}});
  ASSERT_EQ(p.pool.size(), 3U);
  EXPECT_TRUE(p.pool[0].calls);
  EXPECT_EQ(p.pool[0].state_ns, (std::array<double, 4>{80, 10, 10, 0}));
  EXPECT_FALSE(p.pool[1].calls);
  EXPECT_EQ(p.pool[1].state_ns, (std::array<double, 4>{28, 47, 5, 20}));
  EXPECT_EQ(p.pool[2].state_ns, (std::array<double, 4>{10, 0, 0, 90})) << "what no record says was slept";
  EXPECT_EQ(p.nodes[0].barrier_ns, 10);
  EXPECT_EQ(p.runs[0].barrier_ns, 10);
  EXPECT_EQ(p.nodes[0].self_ns, std::vector<double>{40});
  EXPECT_EQ(p.runs[0].events, 2) << "states are of no run";
  expect_sum(p.runs[0]);
  std::vector<int32_t> timeline;
  for (const ProfiledEvent& event : p.median_run) timeline.push_back(event.node);
  EXPECT_EQ(timeline, (std::vector<int32_t>{-3, 0, -4, -4, -3, -3, -5}));
}

TEST(ProfileAnalysis, ABarrierIsOfTheInnermostNodeOfItsThread) {
  const Profile p = analyzed(
      {{state(kBarrier, 25, 28), node(kBody, 20, 30), state(kBarrier, 50, 56), node(kLoop, 10, 70), state(kBarrier, 72, 75), run(0, 80)},
       {state(kBarrier, 32, 40), node(kConv, 30, 44)}});
  EXPECT_EQ(p.nodes[0].barrier_ns, 8);
  EXPECT_EQ(p.nodes[1].barrier_ns, 6);
  EXPECT_EQ(p.nodes[2].barrier_ns, 3);
  EXPECT_EQ(p.runs[0].barrier_ns, 17) << "one of no node is dispatch";
}

TEST(ProfileAnalysis, OneThreadHasNoPool) { EXPECT_TRUE(analyzed({{node(kConv, 10, 50), run(0, 60)}}).pool.empty()); }

TEST(ProfileAnalysis, ARunWithoutNodesIsAllBeforeTheFirst) {
  const Profile p = analyzed({{run(0, 30)}});
  EXPECT_EQ(p.runs[0].before_ns, 30);
  expect_sum(p.runs[0]);
}

TEST(ProfileAnalysis, AnEventCostsMoreThanNothingAndLessThanAMicrosecond) {
  const double ns = measure_ns_per_event();
  EXPECT_GT(ns, 0.1);
  EXPECT_LT(ns, 1000);
}

}  // namespace
}  // namespace treadle::profile
