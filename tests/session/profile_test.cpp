// Tests profiles of sessions that run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "passes/trace.h"
#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

// Makes the model y = softmax(x w), places = where y is not zero. It has a product of [n, 32] and [32, 48], whose weights are an input, and
// a node whose extents are only known in a run.
std::string product_model() {
  return model(graph({.nodes = {node("MatMul", {"x", "w"}, {"p"}), node("Softmax", {"p"}, {"y"}), node("NonZero", {"y"}, {"places"})},
                      .initializers = {},
                      .inputs = {value_info("x", kFloat, {"n", 32}), value_info("w", kFloat, {32, 48})},
                      .outputs = {value_info("y", kFloat, {"n", 48}), value_info("places", kInt64, {2, "k"})}}));
}

Session product_session(const SessionOptions& options = {}) {
  return Session(Model::from_bytes(onnx::test::bytes_of(product_model())), options);
}

std::map<std::string, Datum> product_feeds(int64_t rows) {
  Tensor x(DType::float32, {rows, 32}), w(DType::float32, {32, 48});
  for (Tensor* t : {&x, &w})
    for (float& element : t->span<float>()) element = 0.5F;
  return {{"x", x}, {"w", w}};
}

const ProfiledNode& find(const Profile& profile, const std::string& op) {
  auto found = std::find_if(profile.nodes.begin(), profile.nodes.end(),
                            [&](const ProfiledNode& n) { return n.op_type.find(op) != std::string::npos; });
  EXPECT_NE(found, profile.nodes.end()) << op;
  return *found;
}

MeasuredMemory::ClassBytes profile_bytes_now(const Session& session) {
  MeasuredMemory::ClassBytes bytes{};
  const MemoryStatistics now = session.memory_statistics();
  for (size_t c = 0; c < kNumMemoryClasses; ++c) bytes[c] = now.classes[c].bytes;
  return bytes;
}

TEST(SessionProfile, CountsEveryNodeOfEveryRun) {
  Session session = product_session();
  session.start_profiling();
  for (int i = 0; i < 5; ++i) session.run(product_feeds(4));
  const Profile profile = session.profile();
  ASSERT_EQ(profile.runs.size(), 5U);
  ASSERT_EQ(profile.nodes.size(), 3U);
  for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, 5) << node.name;
  for (const ProfiledRun& run : profile.runs) {
    EXPECT_EQ(run.events, 4);
    EXPECT_NEAR(run.kernel_ns + run.wait_ns + run.before_ns + run.between_ns + run.after_ns, run.duration_ns, 1e-6 * run.duration_ns);
  }
  EXPECT_EQ(profile.events_lost, 0U);
  EXPECT_EQ(profile.events_unknown, 0);
  EXPECT_GT(profile.memory_statistics.total.peak_bytes, 0U);
}

TEST(SessionProfile, LoadingIsTakenApart) {
  const auto start = std::chrono::steady_clock::now();
  Session session = product_session();
  session.run(product_feeds(4));
  const double wall_ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  const Profiler profiler = session.profiler({});  // the profile begins after loading
  session.run(product_feeds(4));
  session.run(product_feeds(9));  // a run with extents that are not the first ones
  const Profile profile = profiler.profile();
  std::map<std::string, std::string> around;  // for each phase, the name of the range around it
  std::vector<double> within(profile.load.size(), 0);
  double all_ns = 0;
  for (size_t i = 0; i < profile.load.size(); ++i) {
    const ProfiledPhase& phase = profile.load[i];
    around[phase.name] = phase.parent < 0 ? "" : profile.load[static_cast<size_t>(phase.parent)].name;
    if (phase.parent < 0) {
      all_ns += phase.duration_ns;
      continue;
    }
    ASSERT_LT(phase.parent, static_cast<int32_t>(i));
    const ProfiledPhase& outer = profile.load[static_cast<size_t>(phase.parent)];
    EXPECT_GE(phase.start_ns, outer.start_ns - 1) << phase.name;
    EXPECT_LE(phase.start_ns + phase.duration_ns, outer.start_ns + outer.duration_ns + 1) << phase.name;
    within[static_cast<size_t>(phase.parent)] += phase.duration_ns;
  }
  for (size_t i = 0; i < profile.load.size(); ++i) EXPECT_LE(within[i], profile.load[i].duration_ns + 1) << profile.load[i].name;
  EXPECT_LE(all_ns, 1.05 * wall_ns);
  const std::map<std::string, std::string> expected{{"read", ""},
                                                    {"make session", ""},
                                                    {"import", "make session"},
                                                    {"upgrade and inference", "make session"},
                                                    {"optimise", "make session"},
                                                    {"fold-constants", "optimise"},
                                                    {"inference", "optimise"},
                                                    {"lower", "make session"},
                                                    {"first binding", ""},
                                                    {"bind kernels", "first binding"},
                                                    {"plan memory", "first binding"}};
  for (const auto& [phase, outer] : expected) {
    ASSERT_TRUE(around.contains(phase)) << phase;
    EXPECT_EQ(around[phase], outer) << phase;
  }
  const ProfileReport report = report_profile(profile);
  EXPECT_NE(profile_to_table(report).find("loading"), std::string::npos);
  for (TraceFormat format : {TraceFormat::perfetto, TraceFormat::chrome})
    EXPECT_NE(profile_to_trace(profile, format).find("upgrade and inference"), std::string::npos);
}

TEST(SessionProfile, NodesNameTheirPasses) {
  Session session = product_session();
  const Profiler profiler = session.profiler({.passes = true}), without = session.profiler({});
  session.run(product_feeds(4));
  std::map<std::string, std::vector<std::string>> expected;  // the passes that a PassTrace of the same optimisation shows
  {
    passes::PassTrace trace;
    const passes::PassTrace::Scope scope(trace);
    product_session();
    for (const ProfiledNode& node : without.profile().nodes)
      expected[node.name] = trace.passes_of(node.sources.empty() ? std::vector<std::string>{node.name} : node.sources);
  }
  for (const ProfiledNode& node : profiler.profile().nodes) EXPECT_EQ(node.passes, expected[node.name]) << node.name;
  for (const ProfiledNode& node : without.profile().nodes) EXPECT_TRUE(node.passes.empty());
}

TEST(SessionProfile, MarksAreOfAllProfilesThatAreTaken) {
  Session session = product_session();
  mark_profile("nobody records");
  const Profiler first = session.profiler({});
  mark_profile("one");
  const Profiler second = session.profiler({});
  session.run(product_feeds(4));
  std::thread([] { mark_profile("two"); }).join();
  const auto names = [](const Profile& profile) {
    std::vector<std::string> found;
    for (const ProfiledMark& mark : profile.marks) found.push_back(mark.name);
    return found;
  };
  const Profile both = first.profile();
  EXPECT_EQ(names(both), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(names(second.profile()), (std::vector<std::string>{"two"}));
  ASSERT_EQ(both.runs.size(), 1U);
  EXPECT_LT(both.marks[0].ns, both.runs[0].start_ns);
  EXPECT_GE(both.marks[1].ns, both.runs[0].start_ns + both.runs[0].duration_ns);
  EXPECT_NE(both.marks[0].thread, both.marks[1].thread);
  EXPECT_EQ(both.spans.size(), 1U) << "the timeline of the whole recording shows them among runs";
}

TEST(SessionProfile, OperationsAreThoseOfTheRunsExtents) {
  Session session = product_session();
  session.start_profiling();
  session.run(product_feeds(7));
  const Profile profile = session.profile();
  const ProfiledNode& product = find(profile, "MatMul");
  EXPECT_EQ(product.flops, 2.0 * 7 * 32 * 48);
  EXPECT_EQ(product.bytes, 4.0 * (7 * 32 + 32 * 48 + 7 * 48));
  EXPECT_EQ(product.outputs[0].shape, (Shape{7, 48}));
  EXPECT_FALSE(product.kernel.empty());
  EXPECT_FALSE(find(profile, "NonZero").outputs[0].shape);
  EXPECT_FALSE(find(profile, "NonZero").flops && find(profile, "NonZero").outputs.empty());
}

// The product has as many rows as the data determine. It is bound during the run, which then knows its operations.
TEST(SessionProfile, OperationsOfDataDependentShapesAreThoseOfTheRuns) {
  Session session(Model::from_bytes(onnx::test::bytes_of(
      model(graph({.nodes = {node("Compress", {"x", "keep"}, {"rows"}, {int_attribute("axis", 0)}), node("MatMul", {"rows", "w"}, {"y"})},
                   .initializers = {},
                   .inputs = {value_info("x", kFloat, {"n", 32}), value_info("keep", kBool, {"n"}), value_info("w", kFloat, {32, 48})},
                   .outputs = {value_info("y", kFloat, {"m", 48})}})))));
  std::map<std::string, Datum> feeds = product_feeds(9);
  Tensor keep(DType::boolean, {9});
  for (int i = 0; i < 9; ++i) keep.data<bool>()[i] = i % 3 == 0;
  feeds["keep"] = keep;
  session.start_profiling();
  session.run(feeds);
  const Profile profile = session.profile();
  EXPECT_EQ(find(profile, "MatMul").flops, 2.0 * 3 * 32 * 48);
}

TEST(SessionProfile, StartsPausesAndForgets) {
  Session session = product_session();
  EXPECT_THROW(static_cast<void>(session.profile()), Error);
  EXPECT_THROW(session.pause_profiling(), Error);
  session.run(product_feeds(1));
  session.start_profiling();
  session.run(product_feeds(1));
  session.pause_profiling();
  session.run(product_feeds(1));
  session.resume_profiling();
  session.run(product_feeds(1));
  EXPECT_EQ(session.profile().runs.size(), 2U);
  session.start_profiling();
  EXPECT_EQ(session.profile().runs.size(), 0U);
  session.run(product_feeds(1));
  EXPECT_EQ(session.profile().runs.size(), 1U);
}

TEST(SessionProfile, OtherOutputsAreOtherNodes) {
  Session session = product_session();
  session.start_profiling();
  const std::vector<std::string> wanted{"y"};
  session.run(product_feeds(1), wanted);
  const Profile profile = session.profile();
  int64_t calls = 0;
  for (const ProfiledNode& node : profile.nodes) calls += node.calls;
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(profile.runs[0].events, 3);
  EXPECT_EQ(profile.steps.size(), 3U);  // the profile has only the nodes of the main graph
}

TEST(SessionProfile, RunsOfSeveralThreadsKeepTheirNodes) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  Session session = product_session(options);
  session.start_profiling();
  constexpr int kThreads = 4, kRuns = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kRuns; ++i) session.run(product_feeds(3));
    });
  for (auto& thread : threads) thread.join();
  const Profile profile = session.profile();
  EXPECT_EQ(profile.runs.size(), size_t{kThreads} * kRuns);
  EXPECT_EQ(profile.events_unknown, 0);
  for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, kThreads * kRuns);
}

TEST(SessionProfile, StartsWhileOthersRun) {
  Session session = product_session();
  std::atomic<bool> stop{false};
  std::thread runs([&] {
    while (!stop) session.run(product_feeds(2));
  });
  for (int i = 0; i < 20; ++i) {
    session.start_profiling();
    session.run(product_feeds(2));
    session.pause_profiling();
    EXPECT_GE(session.profile().runs.size(), 1U);
  }
  stop = true;
  runs.join();
}

TEST(Profiler, SeveralOfOneSessionDoNotDisturbEachOther) {
  Session session = product_session();
  Profiler first = session.profiler({});
  session.run(product_feeds(1));
  {
    Profiler second = session.profiler({});
    session.run(product_feeds(1));
    first.pause();
    session.run(product_feeds(1));
    EXPECT_EQ(second.profile().runs.size(), 2U);
  }
  session.run(product_feeds(1));  // neither profile records this run
  first.resume();
  session.run(product_feeds(1));
  const Profile profile = first.profile();
  EXPECT_EQ(profile.runs.size(), 3U);
  EXPECT_EQ(profile.events_unknown, 0);
  for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, 3) << node.name;
}

TEST(Profiler, OtherSessionsAreNotInIt) {
  Session session = product_session(), other = product_session();
  Profiler profiler = session.profiler({}), of_other = other.profiler({});
  for (int i = 0; i < 3; ++i) {
    session.run(product_feeds(1));
    other.run(product_feeds(1));
    other.run(product_feeds(1));
  }
  EXPECT_EQ(profiler.profile().runs.size(), 3U);
  EXPECT_EQ(of_other.profile().runs.size(), 6U);
  EXPECT_EQ(profiler.profile().events_unknown, 0);
}

TEST(Profiler, StartsAndStopsWhileOthersRun) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  Session session = product_session(options);
  constexpr int kThreads = 4;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      while (!stop) session.run(product_feeds(2));
    });
  for (int i = 0; i < 10; ++i) {
    Profiler profiler = session.profiler({}), beside = session.profiler({.keep_last = true, .memory = true});
    for (int run = 0; run < 5; ++run) session.run(product_feeds(2));
    profiler.pause();
    const Profile profile = profiler.profile();
    EXPECT_GE(profile.runs.size(), 5U);
    int64_t calls = 0;
    for (const ProfiledNode& node : profile.nodes) calls += node.calls;
    EXPECT_EQ(calls, 3 * static_cast<int64_t>(profile.runs.size()));
    EXPECT_GE(beside.profile().runs.size(), 5U);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(Profiler, RunsWithoutAllOfTheirEventsAreLeftOut) {
  Session session = product_session();
  for (bool keep_last : {false, true}) {
    Profiler profiler = session.profiler({.max_events = 4096, .keep_last = keep_last});
    for (int i = 0; i < 3000; ++i) session.run(product_feeds(1));
    const Profile profile = profiler.profile();
    EXPECT_GT(profile.events_lost, 0U);
    EXPECT_GT(profile.runs.size(), 100U);
    EXPECT_LT(profile.runs.size(), 3000U);
    for (const ProfiledRun& run : profile.runs) EXPECT_EQ(run.events, 4);
  }
}

TEST(Profiler, OutlivesItsSession) {
  std::optional<Session> session(product_session());
  Profiler profiler = session->profiler({});
  session->run(product_feeds(1));
  session.reset();
  EXPECT_EQ(profiler.profile().runs.size(), 1U);
}

TEST(ProfileRange, NestsAroundRunsOnAnyThread) {
  Session session = product_session();
  { const ProfileRange nobody_records("before"); }
  Profiler profiler = session.profiler({});
  for (int i = 0; i < 3; ++i) {
    const ProfileRange step("step");
    { const ProfileRange load("load"); }
    const ProfileRange infer("infer");
    session.run(product_feeds(1));
  }
  std::thread([] { const ProfileRange aside("aside"); }).join();
  const Profile profile = profiler.profile();
  ASSERT_EQ(profile.ranges.size(), 4U);
  std::map<std::string, const ProfiledRange*> by_name;
  for (const ProfiledRange& range : profile.ranges) by_name[range.name] = &range;
  const ProfiledRange &step = *by_name.at("step"), &infer = *by_name.at("infer");
  EXPECT_EQ(step.call_ns.size(), 3U);
  EXPECT_EQ(step.parent, -1);
  EXPECT_EQ(by_name.at("aside")->call_ns.size(), 1U);
  EXPECT_EQ(profile.ranges[static_cast<size_t>(infer.parent)].name, "step");
  EXPECT_EQ(profile.ranges[static_cast<size_t>(by_name.at("load")->parent)].name, "step");
  auto total = [](const ProfiledRange& range) {
    double sum = 0;
    for (double ns : range.call_ns) sum += ns;
    return sum;
  };
  double runs = 0;
  for (const ProfiledRun& run : profile.runs) runs += run.duration_ns;
  EXPECT_NEAR(infer.run_ns, runs, 6);  // both times are rounded to whole nanoseconds
  EXPECT_EQ(step.run_ns, infer.run_ns);
  EXPECT_NEAR(step.self_ns, total(step) - total(infer) - total(*by_name.at("load")), 1e-3);
  EXPECT_GE(total(infer), infer.run_ns);
  EXPECT_EQ(profile.spans.size(), 3U * 4 + 1);
}

// Returns, for each name of a range, the times of the ranges and the name of the range around them.
std::map<std::string, std::pair<std::vector<double>, std::string>> ranges_of(const Profile& profile) {
  std::map<std::string, std::pair<std::vector<double>, std::string>> ranges;
  for (const ProfiledRange& range : profile.ranges)
    ranges[range.name] = {range.call_ns, range.parent < 0 ? "" : profile.ranges[static_cast<size_t>(range.parent)].name};
  return ranges;
}

TEST(ProfileRange, IsInAProfileThatIsMadeWhileItIsOpen) {
  Session session = product_session();
  const Profiler profiler = session.profiler({});
  const ProfileRange serve("serve");
  const ProfileRange* batch = new ProfileRange("batch");
  session.run(product_feeds(1));
  const Profile open = profiler.profile();
  auto ranges = ranges_of(open);
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges.at("batch").second, "serve");
  ASSERT_EQ(ranges.at("serve").first.size(), 1U);
  EXPECT_GE(ranges.at("batch").first.at(0), open.runs.at(0).duration_ns);
  EXPECT_GE(ranges.at("serve").first.at(0), ranges.at("batch").first.at(0));
  delete batch;
  session.run(product_feeds(1));
  ranges = ranges_of(profiler.profile());
  ASSERT_EQ(ranges.size(), 2U) << "the one that has ended is there once";
  EXPECT_EQ(ranges.at("batch").first.size(), 1U);
  EXPECT_GT(ranges.at("serve").first.at(0), ranges.at("batch").first.at(0));
}

TEST(ProfileRange, WithoutAnEndItEndsWithTheOneAroundIt) {
  Session session = product_session();
  const Profiler profiler = session.profiler({});
  uint64_t left = 0;
  {
    const ProfileRange outer("outer");
    left = ProfileRange::begin(ProfileRange::name_id("left open"));
  }
  EXPECT_NE(left, 0U);
  { const ProfileRange later("later"); }
  const auto ranges = ranges_of(profiler.profile());
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges.at("left open").second, "outer");
  EXPECT_LE(ranges.at("left open").first.at(0), ranges.at("outer").first.at(0));
  EXPECT_EQ(ranges.at("later").second, "");
}

TEST(ProfileRange, MayEndOnAnotherThread) {
  Session session = product_session();
  const Profiler profiler = session.profiler({});
  const uint32_t name = ProfileRange::name_id("handed over");
  const uint64_t begin = ProfileRange::begin(name);
  std::thread([&] { ProfileRange::end(name, begin); }).join();
  std::thread([&] {
    const uint64_t other = ProfileRange::begin(name);
    std::thread([&] { ProfileRange::end(name, other); }).join();
  }).join();
  const auto ranges = ranges_of(profiler.profile());
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges.at("handed over").first.size(), 2U) << "none of them twice";
}

// The blocks are the arena with the product, an output of 4 * 48 n bytes, and an output whose size is only known in the run.
TEST(MeasuredMemory, BlocksAreThoseOfTheRuns) {
  Session session = product_session();
  Profiler profiler = session.profiler({.memory = true});
  std::vector<Datum> kept = session.run(product_feeds(64));
  const size_t with_output = session.memory_statistics().total.peak_bytes;
  const Profile profile = profiler.profile();
  ASSERT_TRUE(profile.measured_memory);
  const MeasuredMemory& memory = *profile.measured_memory;
  EXPECT_EQ(memory.peak_bytes, with_output);
  EXPECT_EQ(memory.timeline.back().bytes, profile_bytes_now(session));
  std::set<uint64_t> ids;
  const ProfiledBlock *output = nullptr, *arena = nullptr, *places = nullptr;
  for (const ProfiledBlock& block : memory.blocks) {
    EXPECT_TRUE(ids.insert(block.id).second);
    if (block.holder == "y") output = &block;
    if (block.holder == "arena") arena = &block;
    if (block.holder.starts_with("NonZero")) places = &block;
  }
  ASSERT_TRUE(output);
  EXPECT_EQ(output->size_bytes, 4U * 64 * 48);
  EXPECT_EQ(output->memory_class, MemoryClass::io);
  EXPECT_TRUE(output->returned_ns);  // the time at which the caller got the block
  ASSERT_TRUE(arena);
  EXPECT_GE(arena->size_bytes, profile.memory.arena_bytes);
  EXPECT_FALSE(arena->returned_ns);
  EXPECT_TRUE(places);
  size_t held = 0;
  for (const MemoryHolding& holding : memory.holders_at_peak) held += holding.size_bytes;
  EXPECT_EQ(held, memory.peak_bytes);
}

TEST(MeasuredMemory, IsNotRecordedUnlessItIsAskedFor) {
  Session session = product_session();
  Profiler profiler = session.profiler({});
  session.run(product_feeds(64));
  EXPECT_FALSE(profiler.profile().measured_memory);
}

TEST(MeasuredMemory, RefusalsNameWhoAsked) {
  SessionOptions options;
  options.memory_account = std::make_shared<MemoryAccount>("all sessions", 200'000);
  Session session = product_session(options);
  Profiler profiler = session.profiler({.memory = true});
  session.run(product_feeds(4));
  EXPECT_THROW(session.run(product_feeds(4096)), Error);
  const Profile profile = profiler.profile();
  ASSERT_EQ(profile.measured_memory->refused.size(), 1U);
  const MeasuredMemory::Refusal& refusal = profile.measured_memory->refused[0];
  EXPECT_GE(refusal.size_bytes, 4U * 4096 * 48);
  EXPECT_FALSE(refusal.holder.empty());
}

TEST(SessionProfile, TheReportsSharesSumToOne) {
  Session session = product_session();
  session.start_profiling();
  for (int i = 0; i < 20; ++i) session.run(product_feeds(64));
  const auto json = nlohmann::json::parse(profile_to_json(report_profile(session.profile())));
  double share = 0;
  for (const auto& part : json["where"]) share += part["share"].get<double>();
  EXPECT_NEAR(share, 1, 1e-4);
}

// Sets a variable of the environment while it exists.
class WithVariable {
 public:
  WithVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~WithVariable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(MachinePeaks, AreKeptForTheMachine) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("peaks." + std::to_string(getpid()));
  const WithVariable cache("XDG_CACHE_HOME", folder.string());
  const MachinePeaks measured = measure_machine_peaks(1);
  EXPECT_FALSE(measured.kept);
  EXPECT_GE(measured.spread, 0);
  EXPECT_LT(measured.spread, 1);
  const MachinePeaks again = measure_machine_peaks(1);
  EXPECT_EQ(again.kept, !measured.busy);  // a measurement beside other programs is not kept
  if (again.kept) {
    EXPECT_EQ(again.flops_per_second, measured.flops_per_second);
    EXPECT_EQ(again.bytes_per_second, measured.bytes_per_second);
  }
  EXPECT_NE(measure_machine_peaks(2).threads, 1);

  // What is not such a file is replaced.
  const std::filesystem::path file = folder / "treadle" / "peaks.json";
  for (const char* text : {"", "[1]", "{\"", "{\"a\": 1}"}) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    EXPECT_FALSE(measure_machine_peaks(1).kept) << text;
  }
  {
    const WithVariable always("TREADLE_PEAKS", "measure");
    EXPECT_FALSE(measure_machine_peaks(1).kept);
  }
  std::filesystem::remove_all(folder);
}

TEST(MachinePeaks, AreWithinReason) {
  const WithVariable always("TREADLE_PEAKS", "measure");
  const MachinePeaks peaks = measure_machine_peaks(1);
  EXPECT_EQ(peaks.threads, 1);
  EXPECT_GT(peaks.flops_per_second, 1e6);  // even without optimisation and under a sanitizer, it is 2e7
  EXPECT_LT(peaks.flops_per_second, 1e12);
  ASSERT_GE(peaks.bytes_per_second.size(), 2U);
  for (const auto& [bytes, rate] : peaks.bytes_per_second) {
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e12);
  }
}

}  // namespace
}  // namespace treadle::testing
