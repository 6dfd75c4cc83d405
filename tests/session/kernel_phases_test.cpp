// Tests phases of kernels in profiles of sessions.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tests/session/model_bytes.h"
#include "treadle/profile.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

constexpr int kRuns = 6;

// Makes a session that multiplies two inputs [n, 64] and [64, 48], so that each run packs the second one.
Session product_session(const SessionOptions& options) {
  return Session(
      Model::from_bytes(onnx::test::bytes_of(model(graph({.nodes = {node("MatMul", {"x", "w"}, {"p"}), node("Relu", {"p"}, {"y"})},
                                                          .initializers = {},
                                                          .inputs = {value_info("x", kFloat, {"n", 64}), value_info("w", kFloat, {64, 48})},
                                                          .outputs = {value_info("y", kFloat, {"n", 48})}})))),
      options);
}

std::map<std::string, Datum> product_feeds() {
  Tensor x(DType::float32, {200, 64}), w(DType::float32, {64, 48});
  for (Tensor* t : {&x, &w})
    for (float& element : t->span<float>()) element = 0.5F;
  return {{"x", x}, {"w", w}};
}

std::map<std::string, const ProfiledKernelPhase*> phases_of(const ProfiledNode& node) {
  std::map<std::string, const ProfiledKernelPhase*> phases;
  for (const ProfiledKernelPhase& phase : node.kernel_phases) phases[phase.name] = &phase;
  return phases;
}

struct Way {
  const char* name;
  SessionOptions options;
};
std::vector<Way> ways() {
  std::vector<Way> ways(4);
  ways[0].name = "in order";
  ways[1].name = "counters";
  ways[1].options.node_counters = true;
  ways[2].name = "by readiness";
  ways[2].options.execution_mode = ExecutionMode::parallel;
  ways[3].name = "sim";
  ways[3].options.device = "sim";
  for (Way& way : ways) way.options.intra_op_num_threads = way.name == std::string("by readiness") ? 2 : 1;
  return ways;
}

TEST(KernelPhases, OfAProductSumToNoMoreThanTheNode) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    Session session = product_session(way.options);
    const Profiler profiler = session.profiler({.kernel_phases = true}), beside = session.profiler({});
    for (int i = 0; i < kRuns; ++i) session.run(product_feeds());
    const Profile profile = profiler.profile();
    ASSERT_EQ(profile.runs.size(), static_cast<size_t>(kRuns));
    const ProfiledNode& product = profile.nodes[0];
    const auto phases = phases_of(product);
    ASSERT_TRUE(phases.contains("pack") && phases.contains("compute"));
    EXPECT_GE(phases.at("pack")->calls, kRuns);
    if (way.options.intra_op_num_threads == 1) {
      EXPECT_EQ(phases.at("pack")->calls, kRuns);
      EXPECT_EQ(phases.at("compute")->calls, kRuns);
      for (int r = 0; r < kRuns; ++r) {
        double sum = 0;
        for (const auto& [name, phase] : phases) sum += phase->self_ns[static_cast<size_t>(r)];
        EXPECT_LE(sum, product.self_ns[static_cast<size_t>(r)]);
        EXPECT_GT(sum, 0);
      }
    }
    int64_t events = 0;
    for (const ProfiledRun& run : profile.runs) events += run.events;
    EXPECT_GE(events, kRuns * 4);
    // A profile that does not ask for phases contains none.
    const Profile other = beside.profile();
    for (const ProfiledNode& node : other.nodes) EXPECT_TRUE(node.kernel_phases.empty());
    // There is an event for the run and one for each node. On a device there are two for each node, because the host issues the nodes.
    const int64_t of_a_node = way.options.device.empty() ? 1 : 2;
    for (const ProfiledRun& run : other.runs) EXPECT_EQ(run.events, 1 + of_a_node * static_cast<int64_t>(other.nodes.size()));
  }
}

TEST(KernelPhases, LieWithinTheirNodeInTheTimeline) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  Session session = product_session(options);
  const Profiler profiler = session.profiler({.kernel_phases = true});
  for (int i = 0; i < kRuns; ++i) session.run(product_feeds());
  const Profile profile = profiler.profile();
  const ProfiledEvent* node = nullptr;
  int phases = 0;
  for (const ProfiledEvent& event : profile.median_run) {
    if (event.phase < 0) {
      node = &event;
      continue;
    }
    ++phases;
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(event.node, node->node);
    EXPECT_GE(event.start_ns, node->start_ns);
    EXPECT_LE(event.start_ns + event.duration_ns, node->start_ns + node->duration_ns + 1e-3);
  }
  EXPECT_EQ(phases, 2);
  const std::string stacks = profile_to_trace(profile, TraceFormat::folded);
  EXPECT_NE(stacks.find("make_p;pack "), std::string::npos) << stacks;
}

}  // namespace
}  // namespace treadle::testing
