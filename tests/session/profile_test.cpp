// Profiles of real sessions.
#include "treadle/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

// y = relu(x w + b), places = where y is not zero: a product of [n, 32] and [32, 48] (its weights computed in the run), and a node whose
// extents only the run knows.
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

// A product of as many rows as the data say: bound in the run, which knows what it costs.
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
  EXPECT_EQ(profile.steps.size(), 3U);  // of the main graph only
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

TEST(SessionProfile, TheReportsSharesSumToOne) {
  Session session = product_session();
  session.start_profiling();
  for (int i = 0; i < 20; ++i) session.run(product_feeds(64));
  const auto json = nlohmann::json::parse(profile_to_json(session.profile()));
  double share = 0;
  for (const auto& part : json["where"]) share += part["share"].get<double>();
  EXPECT_NEAR(share, 1, 1e-4);
}

TEST(MachinePeaks, AreWithinReason) {
  const MachinePeaks peaks = measure_machine_peaks(1);
  EXPECT_EQ(peaks.threads, 1);
  EXPECT_GT(peaks.flops_per_second, 1e8);
  EXPECT_LT(peaks.flops_per_second, 1e12);
  ASSERT_GE(peaks.bytes_per_second.size(), 2U);
  for (const auto& [bytes, rate] : peaks.bytes_per_second) {
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e12);
  }
}

}  // namespace
}  // namespace treadle::testing
