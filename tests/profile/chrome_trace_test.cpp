#include "profile/chrome_trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "treadle/error.h"

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

std::vector<Json> events_of(const Json& trace, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) events.push_back(event);
  return events;
}

TEST(ChromeTrace, RangesHaveMicrosecondsWithNanosecondDigits) {
  Json trace = Json::parse(to_chrome_trace(made_up()));
  auto ranges = events_of(trace, "X");
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0]["name"], "run");
  EXPECT_EQ(ranges[0]["cat"], "run");
  EXPECT_EQ(ranges[0]["ts"], 0.0);
  EXPECT_EQ(ranges[0]["dur"], 3.0);
  EXPECT_FALSE(ranges[0].contains("args"));
  EXPECT_EQ(ranges[1]["ts"], 1.001);
  EXPECT_EQ(ranges[1]["dur"], 1.499);
  EXPECT_EQ(ranges[1]["args"], (Json{{"flops", 10}, {"bytes", 20}}));
  EXPECT_EQ(ranges[1]["tid"], ranges[0]["tid"]);
}

TEST(ChromeTrace, NamesThatAreNotUtf8StillGiveValidJson) {
  Json trace = Json::parse(to_chrome_trace(made_up()));
  EXPECT_EQ(events_of(trace, "X")[1]["name"], "conv \"a\"\n\xEF\xBF\xBD");
}

TEST(ChromeTrace, CountersInstantsAndThreadNamesAreWritten) {
  Json trace = Json::parse(to_chrome_trace(made_up()));
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
  Json trace = Json::parse(to_chrome_trace(recording));
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

TEST(ChromeTrace, AFileIsWrittenWholeOrNotAtAll) {
  auto path = std::filesystem::path(testing::TempDir()) / "treadle_trace_test.json";
  Recorder recorder;
  uint32_t name = recorder.intern("work");
  { RecordScope scope(&recorder, name, RecordKind::node); }
  std::thread([&] { RecordScope scope(&recorder, name, RecordKind::chunk); }).join();
  write_chrome_trace(recorder.collect(), path.string());
  std::ifstream file(path);
  Json trace = Json::parse(file);
  EXPECT_EQ(events_of(trace, "X").size(), 2U);
  EXPECT_EQ(trace["otherData"]["dropped_records"], 0);
  std::filesystem::remove(path);
  EXPECT_THROW(write_chrome_trace(recorder.collect(), "/no/such/folder/trace.json"), Error);
}

}  // namespace
}  // namespace treadle::profile
