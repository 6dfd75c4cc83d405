// Tests the JSON, the table and the comparison of profiles with known times.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace {

using Json = nlohmann::json;

// Makes a profile of ten runs of 100 us, in which a product takes 60 us and a copy 20 us. The peaks are 1 GFLOP/ms and 10 bytes/ns.
Profile known_profile() {
  Profile p;
  p.nodes.resize(2);
  p.nodes[0] = {{.name = "fc", .op_type = "MatMul", .kernel = "packed", .flops = 3e6, .bytes = 4000}};
  p.nodes[0].inputs = {{"x", DType::float32, Shape{1, 10}, false}, {"w", DType::float32, Shape{10, 20}, true}};
  p.nodes[0].outputs = {{"y", DType::float32, Shape{1, 20}, false}};
  p.nodes[1] = {{.name = "flip", .op_type = "Transpose", .kernel = "plain", .flops = 0, .bytes = 100'000, .moves = true}};
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

ProfileReport known_report() { return report_profile(known_profile(), known_context()); }
Json known_json() { return Json::parse(profile_to_json(known_report())); }

std::string table_of(const Json& json) { return profile_to_table(read_profile(json.dump(), ProfileParts::without_timeline)); }
ProfileDifference compare_files(const std::string& before, const std::string& after, double tolerance = 0.03) {
  return compare_profiles(read_profile(before), read_profile(after), tolerance);
}

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
  EXPECT_EQ(ms_of(where, "profiler"), 0.001);  // the time for the events of two nodes
  EXPECT_EQ(ms_of(where, "dispatch"), 0.008);
  EXPECT_EQ(ms_of(where, "outside"), 0.002);
}

TEST(ProfileReport, RatesFollowFromCostsAndPeaks) {
  const Json nodes = known_json()["nodes"];
  EXPECT_EQ(nodes[0]["gflops"], 50);  // 3e6 operations in 60 us
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
  p.nodes[1].bytes = 1e9;  // 50 bytes/ns, above the peak: the node moved nothing
  p.nodes[0].inputs[0].shape.reset();
  const Json json = Json::parse(profile_to_json(report_profile(p, known_context())));
  for (const char* field : {"flops", "gflops", "of_peak", "bound"}) EXPECT_FALSE(json["nodes"][0].contains(field)) << field;
  EXPECT_FALSE(json["nodes"][0]["inputs"][0].contains("shape"));
  for (const char* field : {"gb_per_s", "of_peak"}) EXPECT_FALSE(json["nodes"][1].contains(field)) << field;
  EXPECT_FALSE(json.contains("remedies"));
  EXPECT_FALSE(Json::parse(profile_to_json(report_profile(p))).contains("peaks"));
}

TEST(ProfileReport, PeaksOfFloat32AreNotHeldAgainstOtherNumbers) {
  Profile p = known_profile();
  p.nodes[0].inputs[1].dtype = DType::int8;
  const Json json = Json::parse(profile_to_json(report_profile(p, known_context())));
  EXPECT_EQ(json["nodes"][0]["gflops"], 50);
  EXPECT_FALSE(json["nodes"][0].contains("of_peak"));
  EXPECT_EQ(ms_of(json["where"], "other_numbers"), 0.06);
}

// The peak was measured while something else ran: a node that is faster shows the machine's true speed.
TEST(ProfileReport, NoNodeIsAboveAPeakThatItDisproves) {
  Profile p = known_profile();
  p.nodes[0].flops = 12e6;  // in 60 us: 200 GFLOP/s, twice the measured peak
  ProfileContext context = known_context();
  context.peaks.spread = 0.25;
  const ProfileReport report = report_profile(p, context);
  EXPECT_EQ(report.peaks->gflops, 200);
  EXPECT_EQ(report.peaks->raised_by, p.nodes[0].name);
  EXPECT_EQ(report.nodes[0].of_peak, 1);
  EXPECT_EQ(report.nodes[0].above_peak, "");
  EXPECT_NE(profile_to_table(report).find("as node " + p.nodes[0].name + " shows"), std::string::npos);

  // Winograd's convolutions need fewer operations than they are counted with, so they prove nothing, and say why they are above.
  p.nodes[0].forms = "F(4,3)";
  const ProfileReport winograd = report_profile(p, context);
  EXPECT_EQ(winograd.peaks->gflops, 100);
  EXPECT_EQ(winograd.nodes[0].of_peak, 2);
  EXPECT_NE(winograd.nodes[0].above_peak.find("Winograd"), std::string::npos);
  EXPECT_NE(profile_to_table(winograd).find("measured at rest; spread 25.0 %"), std::string::npos);
  EXPECT_NE(profile_to_table(winograd).find("above 100 %: Winograd"), std::string::npos);

  // Neither do nodes of a few microseconds.
  p = known_profile();
  p.nodes[0].flops = 12e6;
  for (double& ns : p.nodes[0].self_ns) ns = 6e3;
  EXPECT_EQ(report_profile(p, context).peaks->gflops, 100);
}

TEST(ProfileReport, BytesInCachesExplainMoreThanTheBandwidth) {
  Profile p = known_profile();
  p.nodes[1].bytes = 240'000;  // in 20 us: 12 GB/s, above the 10 of copies
  const ProfileReport report = report_profile(p, known_context());
  EXPECT_EQ(report.nodes[1].of_peak, 1.2);
  EXPECT_NE(report.nodes[1].above_peak.find("caches"), std::string::npos);
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
  const ProfileReport report = known_report();
  const std::string table = profile_to_table(report, {.top = 1});
  EXPECT_NE(table.find("1x10 -> 1x20"), std::string::npos) << table;
  EXPECT_NE(table.find("0.0600"), std::string::npos) << table;
  EXPECT_NE(table.find("50 compute"), std::string::npos) << table;
  EXPECT_NE(table.find("1 more nodes, 19.6 %"), std::string::npos) << table;
  EXPECT_NE(table.find("together                           0.1020  100.0"), std::string::npos) << table;
  EXPECT_THROW(profile_to_table(report, {.sort = "colour"}), Error);
  EXPECT_THROW(read_profile("{}"), Error);
  EXPECT_THROW(read_profile("[1, 2"), Error);
}

TEST(ProfileTable, IsTheSameWhateverTheTimelineHolds) {
  Json json = known_json();
  json["model"] = "\"timeline\": {";
  json["timeline"] = {{"median", {{"names", {"}]\\\"{", "timeline"}}, {"timeline", Json::object()}}}};
  json["tools"] = {{"timeline", {{"no", "timeline"}}}};
  const std::string expected = [&] {
    Json without = json;
    without.erase("timeline");
    return table_of(without);
  }();
  EXPECT_EQ(table_of(json), expected);
  EXPECT_EQ(profile_to_table(read_profile(json.dump(2), ProfileParts::without_timeline)), expected);
  json["timeline"] = "none";
  EXPECT_EQ(table_of(json), expected);
  json["timeline"] = {{"median", "cut off"}};
  const std::string text = json.dump();
  EXPECT_THROW(static_cast<void>(read_profile(text.substr(0, text.find("cut off")), ProfileParts::without_timeline)), Error);
}

TEST(ProfileTable, DamagedProfilesAreErrors) {
  Json json = known_json();
  json["nodes"][0]["ms"]["median"] = "fast";
  EXPECT_THROW(table_of(json), Error);
  EXPECT_THROW(compare_files(json.dump(), json.dump()), Error);
  json["nodes"][0] = 7;
  EXPECT_THROW(table_of(json), Error);
  json = known_json();
  json["where"] = Json::array({{{"title", "part"}}});
  EXPECT_THROW(table_of(json), Error);
  json = known_json();
  json["memory"]["classes"] = Json::array({7});
  EXPECT_THROW(table_of(json), Error);
}

TEST(ProfileTable, ShortensNamesWithoutCuttingCharacters) {
  Profile p = known_profile();
  p.nodes[0].name = std::string(60, 'a') + "\xC3\xA4\xC3\xB6\xC3\xBC";
  const std::string table = profile_to_table(report_profile(p, known_context()));
  EXPECT_NE(table.find("..aaa"), std::string::npos) << table;
  EXPECT_NE(table.find("\xC3\xA4\xC3\xB6\xC3\xBC"), std::string::npos) << table;
}

// Makes a profile with data in every part.
Profile full_profile() {
  Profile p = known_profile();
  p.nodes[0].unused_kernels = {{"plain", "packed goes before it"}};
  p.nodes[0].forms = "F(4,3)", p.nodes[0].phase = "forward", p.nodes[0].sequence = 0;
  p.nodes[0].sources = {"a", "b"}, p.nodes[0].layers = {"l", "l.0"}, p.nodes[0].passes = {"fuse"};
  p.nodes[0].inputs[0].row_step = 30, p.nodes[0].inputs[1].value = "0.5", p.nodes[0].outputs[0].shares = "x";
  p.nodes[0].packed_bytes = 64, p.nodes[0].barrier_ns = 5000;
  p.nodes[0].kernel_phases = {{"pack", 10, std::vector<double>(10, 2e3)}};
  p.nodes[1].parent = 0, p.nodes[1].phase = "backward", p.nodes[1].forward = {0}, p.nodes[1].between_devices = true;
  p.threads = {"main", "pool"};
  p.pool = {{.thread = 1, .calls = true, .state_ns = {1, 1, 1, 1}}};
  p.clock = {{0, 5}, {1e9, 1'000'000'005}};
  p.median_run = {{.node = 0, .duration_ns = 60e3, .phase = 0, .waited_ns = 2000}};
  p.slowest_run = {{.node = -1, .duration_ns = 10}};
  p.buffers = {{.name = "y", .memory_class = MemoryClass::activations, .size_bytes = 80}};
  p.steps = {0};
  p.load = {{.name = "read", .duration_ns = 10}, {.name = "parse", .parent = 0, .duration_ns = 5}};
  p.ranges = {{.name = "batch", .python = true, .call_ns = {1e6}}, {.name = "inner", .parent = 0, .call_ns = {1e5}}};
  p.spans = {{.range = 0, .duration_ns = 1e6}, {.range = -1, .duration_ns = 1e5}};
  p.marks = {{.name = "epoch \"1\" <", .thread = 1, .ns = 5}};
  MeasuredMemory& memory = p.measured_memory.emplace();
  memory.timeline = {{.ns = 1, .bytes = {1, 2}}};
  memory.holders_at_peak = {{"y", MemoryClass::activations, 80}, {"", MemoryClass::other, 1}};
  memory.blocks = {{.id = 1, .holder = "y", .size_bytes = 80, .returned_ns = 5}, {.id = 2}};
  memory.refused = {{.ns = 3, .size_bytes = 4}};
  return p;
}

TEST(ProfileFile, SaysTheSameWhenItHasBeenReadAndWritten) {
  ProfileContext context = known_context();
  context.command = "treadle profile m.onnx", context.options = "width=2", context.assumed_extents = "N=1";
  context.warmup_runs = 1, context.load_ms = 2.5, context.first_run_ms = 0.25, context.plain_ns.assign(10, 102e3);
  context.remedies_tried = true;
  context.remedies = {{.title = "use 2 threads", .evidence = "measured", .command = "--threads 2", .effect = 0.25}};
  const std::string text = profile_to_json(report_profile(full_profile(), context));
  const Json json = Json::parse(text);
  for (const char* part : {"remedies", "layers", "pool", "load", "ranges", "marks", "clock", "peaks", "phases"})
    EXPECT_TRUE(json.contains(part)) << part;
  // Null means that there is no difference beyond the noise; a missing entry would mean something else.
  EXPECT_TRUE(json["profiler"].at("slowdown").is_null());
  EXPECT_EQ(profile_to_json(read_profile(text)), text);
}

TEST(ProfileFile, IndicesOfWhatIsNotThereAreErrors) {
  const Json whole = Json::parse(profile_to_json(report_profile(full_profile(), known_context())));
  const auto expect_error = [&](const char* place, const Json& value) {
    Json json = whole;
    json[Json::json_pointer(place)] = value;
    EXPECT_THROW(read_profile(json.dump()), Error) << place;
  };
  expect_error("/nodes/1/forward/0", 2);
  expect_error("/nodes/1/parent", 1);
  expect_error("/nodes/1/parent", 4'294'967'296);
  expect_error("/load/1/parent", 7);
  expect_error("/ranges/0/parent", 1);
  expect_error("/memory/steps/0", -1);
  expect_error("/memory/live/activations", Json::array());
  expect_error("/marks/ms", Json::array());
  expect_error("/timeline/median/thread", Json::array());
  EXPECT_NO_THROW(read_profile(whole.dump()));
}

TEST(ProfileFile, PartsThatNestTooDeepAreErrors) {
  Json json = known_json();
  for (int i = 0; i < 100'000; ++i) json["load"].push_back({{"name", "p"}, {"parent", i - 1}, {"calls", 1}, {"start_ms", 0}, {"ms", 1}});
  EXPECT_THROW(read_profile(json.dump()), Error);
}

// Writes a profile that has only these medians and intervals.
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
  const ProfileDifference difference = compare_files(before, after);
  EXPECT_EQ(difference.run.verdict, Change::slower);
  const Json json = Json::parse(difference_to_json(difference));
  std::map<std::string, std::string> verdicts;
  for (const Json& node : json["nodes"]) verdicts[node["name"]] = node["verdict"];
  EXPECT_EQ(verdicts, (std::map<std::string, std::string>{
                          {"faster", "faster"}, {"slower", "slower"}, {"same", "unchanged"}, {"noisy", "cannot tell"}}));
  EXPECT_EQ(json["only_before"], Json{"gone"});
  EXPECT_EQ(json["only_after"], Json{"new"});
  EXPECT_EQ(compare_files(after, before).run.verdict, Change::faster);
  EXPECT_EQ(compare_files(before, before).run.verdict, Change::unchanged);
  EXPECT_EQ(compare_files(before, before, 0.001).run.verdict, Change::unclear);  // the intervals are 2 % wide
}

TEST(ProfileComparison, NamesakesAreMatchedInOrder) {
  const std::string before = crafted(1, 0.001, {{"", 1, 0.001}, {"", 5, 0.001}}),
                    after = crafted(1, 0.001, {{"", 1, 0.001}, {"", 5, 0.001}});
  const Json json = Json::parse(difference_to_json(compare_files(before, after)));
  for (const Json& node : json["nodes"]) EXPECT_EQ(node["verdict"], "unchanged");
}

TEST(ProfileComparison, WithoutIntervalsNobodyCanTell) {
  const std::string text = R"({"format": "treadle-profile", "version": 1, "runs": {"ms": {"median": 1}}, "nodes": []})";
  EXPECT_EQ(compare_files(text, text).run.verdict, Change::unclear);
  EXPECT_THROW(compare_files(text, "{}"), Error);
  EXPECT_THROW(compare_files(text, R"({"format": "treadle-profile", "version": 2})"), Error);
  EXPECT_THROW(compare_files(text, text, -1), Error);
}

TEST(ProfileComparison, SaysWhatChangedInThePlan) {
  Json before = Json::parse(crafted(1, 0.001, {{"c", 1, 0.001}})), after = before;
  after["nodes"][0]["kernel"] = "vectors";
  EXPECT_NE(difference_to_table(compare_files(before.dump(), after.dump())).find("kernel: plain -> vectors"), std::string::npos);
}

}  // namespace
}  // namespace treadle
