// JSON, table and comparison of profiles with known times.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

using Json = nlohmann::json;

// Ten runs of 100 us: a product for 60, a copy for 20; 1 GFLOP/ms and 10 bytes/ns at best.
Profile known_profile() {
  Profile p;
  p.nodes.resize(2);
  p.nodes[0] = {.name = "fc", .op_type = "MatMul", .kernel = "packed", .flops = 3e6, .bytes = 4000};
  p.nodes[0].inputs = {{"x", DType::float32, Shape{1, 10}, false}, {"w", DType::float32, Shape{10, 20}, true}};
  p.nodes[0].outputs = {{"y", DType::float32, Shape{1, 20}, false}};
  p.nodes[1] = {.name = "flip", .op_type = "Transpose", .kernel = "plain", .flops = 0, .bytes = 100'000, .moves = true};
  for (int r = 0; r < 10; ++r) {
    p.runs.push_back(
        {.duration_ns = 100e3, .kernel_ns = 80e3, .before_ns = 5e3, .between_ns = 9e3, .after_ns = 6e3, .node_ns = 80e3, .events = 3});
    p.nodes[0].self_ns.push_back(60e3);
    p.nodes[1].self_ns.push_back(20e3);
  }
  p.nodes[0].calls = p.nodes[1].calls = 10;
  p.ns_per_event = 500;
  return p;
}

ProfileContext known_context() {
  ProfileContext context{.model = "m.onnx"};
  context.peaks = {.threads = 1, .flops_per_second = 100e9, .bytes_per_second = {{1e5, 10e9}}};
  context.call_ns.assign(10, 102e3);
  return context;
}

Json known_json() { return Json::parse(profile_to_json(known_profile(), known_context())); }

double ms_of(const Json& list, const std::string& id) {
  for (const Json& part : list)
    if (part["id"] == id) return part["ms"];
  return 0;
}

TEST(ProfileReport, SharesSumToTheWholeRun) {
  const Json where = known_json()["where"];
  double share = 0, ms = 0;
  for (const Json& part : where) share += part["share"].get<double>(), ms += part["ms"].get<double>();
  EXPECT_NEAR(share, 1, 1e-5);
  EXPECT_NEAR(ms, 0.102, 1e-6);
  EXPECT_EQ(ms_of(where, "compute"), 0.06);
  EXPECT_EQ(ms_of(where, "moves"), 0.02);
  EXPECT_EQ(ms_of(where, "profiler"), 0.001);  // two nodes' events
  EXPECT_EQ(ms_of(where, "dispatch"), 0.008);
  EXPECT_EQ(ms_of(where, "outside"), 0.002);
}

TEST(ProfileReport, RatesFollowFromCostsAndPeaks) {
  const Json nodes = known_json()["nodes"];
  EXPECT_EQ(nodes[0]["gflops"], 50);  // 3e6 in 60 us
  EXPECT_EQ(nodes[0]["bound"], "compute");
  EXPECT_EQ(nodes[0]["bound_ms"], 0.03);
  EXPECT_EQ(nodes[0]["of_peak"], 0.5);
  EXPECT_EQ(nodes[1]["gb_per_s"], 5);
  EXPECT_EQ(nodes[1]["of_peak"], 0.5);
  EXPECT_FALSE(nodes[1].contains("gflops"));
}

TEST(ProfileReport, WhatIsNotKnownIsLeftOut) {
  Profile p = known_profile();
  p.nodes[0].flops.reset();
  p.nodes[1].bytes = 1e9;  // in 20 us: it lay in place
  p.nodes[0].inputs[0].shape.reset();
  const Json json = Json::parse(profile_to_json(p, known_context()));
  for (const char* field : {"flops", "gflops", "of_peak", "bound"}) EXPECT_FALSE(json["nodes"][0].contains(field)) << field;
  EXPECT_FALSE(json["nodes"][0]["inputs"][0].contains("shape"));
  for (const char* field : {"gb_per_s", "of_peak"}) EXPECT_FALSE(json["nodes"][1].contains(field)) << field;
  EXPECT_FALSE(json.contains("remedies"));
  EXPECT_FALSE(Json::parse(profile_to_json(p)).contains("peaks"));
}

TEST(ProfileReport, PeaksOfFloat32AreNotHeldAgainstOtherNumbers) {
  Profile p = known_profile();
  p.nodes[0].inputs[1].dtype = DType::int8;
  const Json json = Json::parse(profile_to_json(p, known_context()));
  EXPECT_EQ(json["nodes"][0]["gflops"], 50);
  EXPECT_FALSE(json["nodes"][0].contains("of_peak"));
  EXPECT_EQ(ms_of(json["where"], "other_numbers"), 0.06);
}

TEST(ProfileReport, BandwidthIsInterpolatedByTheSizeOfWhatMoves) {
  const MachinePeaks peaks{.threads = 1, .flops_per_second = 1e9, .bytes_per_second = {{1e4, 100e9}, {1e6, 20e9}}};
  EXPECT_EQ(peaks.bandwidth(1), 100e9);
  EXPECT_DOUBLE_EQ(peaks.bandwidth(1e5), 60e9);
  EXPECT_EQ(peaks.bandwidth(1e9), 20e9);
  EXPECT_DOUBLE_EQ(peaks.bound_ns(100, 0), 100);
  EXPECT_DOUBLE_EQ(peaks.bound_ns(1, 1e6), 50'000);
  EXPECT_EQ(MachinePeaks{}.bound_ns(100, 100), 0);
}

TEST(ProfileTable, ShowsNodesByTimeAndCountsTheRest) {
  const std::string json = profile_to_json(known_profile(), known_context());
  const std::string table = profile_to_table(json, {.top = 1});
  EXPECT_NE(table.find("1x10 -> 1x20"), std::string::npos) << table;
  EXPECT_NE(table.find("0.0600"), std::string::npos) << table;
  EXPECT_NE(table.find("50 compute"), std::string::npos) << table;
  EXPECT_NE(table.find("1 more nodes, 19.6 %"), std::string::npos) << table;
  EXPECT_NE(table.find("together                           0.1020  100.0"), std::string::npos) << table;
  EXPECT_THROW(profile_to_table(json, {.sort = "colour"}), Error);
  EXPECT_THROW(profile_to_table("{}"), Error);
  EXPECT_THROW(profile_to_table("[1, 2"), Error);
}

TEST(ProfileTable, IsTheSameWhateverTheTimelineHolds) {
  Json json = known_json();
  json["model"] = "\"timeline\": {";
  json["timeline"] = {{"median", {{"names", {"}]\\\"{", "timeline"}}, {"timeline", Json::object()}}}};
  json["tools"] = {{"timeline", {{"no", "timeline"}}}};
  const std::string expected = [&] {
    Json without = json;
    without.erase("timeline");
    return profile_to_table(without.dump());
  }();
  EXPECT_EQ(profile_to_table(json.dump()), expected);
  EXPECT_EQ(profile_to_table(json.dump(2)), expected);
  json["timeline"] = "none";
  EXPECT_EQ(profile_to_table(json.dump()), expected);
  json["timeline"] = {{"median", "cut off"}};
  const std::string text = json.dump();
  EXPECT_THROW(static_cast<void>(profile_to_table(text.substr(0, text.find("cut off")))), Error);
}

TEST(ProfileTable, DamagedProfilesAreErrors) {
  Json json = known_json();
  json["nodes"][0]["ms"]["median"] = "fast";
  EXPECT_THROW(profile_to_table(json.dump()), Error);
  EXPECT_THROW(compare_profiles(json.dump(), json.dump()), Error);
  json["nodes"][0] = 7;
  EXPECT_THROW(profile_to_table(json.dump()), Error);
  json = known_json();
  json["where"] = Json::array({{{"title", "part"}}});
  EXPECT_THROW(profile_to_table(json.dump()), Error);
  json = known_json();
  json["memory"]["classes"] = Json::array({7});
  EXPECT_THROW(profile_to_table(json.dump()), Error);
}

TEST(ProfileTable, ShortensNamesWithoutCuttingCharacters) {
  Profile p = known_profile();
  p.nodes[0].name = std::string(60, 'a') + "\xC3\xA4\xC3\xB6\xC3\xBC";
  const std::string table = profile_to_table(profile_to_json(p, known_context()));
  EXPECT_NE(table.find("..aaa"), std::string::npos) << table;
  EXPECT_NE(table.find("\xC3\xA4\xC3\xB6\xC3\xBC"), std::string::npos) << table;
}

// A profile with medians and intervals as given, nothing else.
std::string crafted(double run, double width, const std::vector<std::tuple<std::string, double, double>>& nodes) {
  auto ms = [](double median, double half) {
    return Json{{"median", median}, {"interval", {median - half, median + half}}, {"p10", median}, {"p90", median}};
  };
  Json json{{"format", "treadle-profile"}, {"version", 1}, {"runs", {{"ms", ms(run, width)}}}, {"nodes", Json::array()}};
  for (const auto& [name, median, half] : nodes)
    json["nodes"].push_back({{"name", name}, {"op", "Add"}, {"kernel", "plain"}, {"ms", ms(median, half)}});
  return json.dump();
}

TEST(ProfileComparison, ToldApartFromNoise) {
  const std::string before =
      crafted(10, 0.1, {{"faster", 1, 0.1}, {"slower", 1, 0.1}, {"same", 1, 0.005}, {"noisy", 1, 0.5}, {"gone", 1, 0}});
  const std::string after =
      crafted(12, 0.1, {{"faster", 0.5, 0.1}, {"slower", 1.5, 0.1}, {"same", 1.01, 0.005}, {"noisy", 1.2, 0.5}, {"new", 1, 0}});
  const ProfileDifference difference = compare_profiles(before, after);
  EXPECT_EQ(difference.run, Change::slower);
  const Json json = Json::parse(difference.json);
  std::map<std::string, std::string> verdicts;
  for (const Json& node : json["nodes"]) verdicts[node["name"]] = node["verdict"];
  EXPECT_EQ(verdicts, (std::map<std::string, std::string>{
                          {"faster", "faster"}, {"slower", "slower"}, {"same", "unchanged"}, {"noisy", "cannot tell"}}));
  EXPECT_EQ(json["only_before"], Json{"gone"});
  EXPECT_EQ(json["only_after"], Json{"new"});
  EXPECT_EQ(compare_profiles(after, before).run, Change::faster);
  EXPECT_EQ(compare_profiles(before, before).run, Change::unchanged);
  EXPECT_EQ(compare_profiles(before, before, 0.001).run, Change::unclear);  // the intervals allow 2 %
}

TEST(ProfileComparison, NamesakesAreMatchedInOrder) {
  const std::string before = crafted(1, 0.001, {{"", 1, 0.001}, {"", 5, 0.001}}),
                    after = crafted(1, 0.001, {{"", 1, 0.001}, {"", 5, 0.001}});
  const Json json = Json::parse(compare_profiles(before, after).json);
  for (const Json& node : json["nodes"]) EXPECT_EQ(node["verdict"], "unchanged");
}

TEST(ProfileComparison, WithoutIntervalsNobodyCanTell) {
  const std::string text = R"({"format": "treadle-profile", "version": 1, "runs": {"ms": {"median": 1}}, "nodes": []})";
  EXPECT_EQ(compare_profiles(text, text).run, Change::unclear);
  EXPECT_THROW(compare_profiles(text, "{}"), Error);
  EXPECT_THROW(compare_profiles(text, R"({"format": "treadle-profile", "version": 2})"), Error);
  EXPECT_THROW(compare_profiles(text, text, -1), Error);
}

TEST(ProfileComparison, SaysWhatChangedInThePlan) {
  Json before = Json::parse(crafted(1, 0.001, {{"c", 1, 0.001}})), after = before;
  after["nodes"][0]["kernel"] = "vectors";
  EXPECT_NE(compare_profiles(before.dump(), after.dump()).text.find("kernel: plain -> vectors"), std::string::npos);
}

}  // namespace
}  // namespace treadle
