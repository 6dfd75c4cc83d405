// Tests that a profile that opens while runs are under way contains the rest of those runs.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/session/models.h"
#include "treadle/profile.h"
#include "treadle/train.h"
#include "treadle/treadle.hpp"

namespace treadle::testing {
namespace {

// Makes z = -(|x| * w), in three nodes.
Model chain() {
  ModelBuilder b;
  b.input("x", {3}).output("z", {3}).constant("w", floats({1, -2, 3}));
  b.node("Abs", {"x"}, {"a"}, "first").node("Mul", {"a", "w"}, {"m"}, "second").node("Neg", {"m"}, {"z"}, "third");
  return b.model();
}

SessionOptions node_by_node(const std::string& device) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.device = device;
  return options;
}

std::map<std::string, int64_t> calls_of(const Profile& profile) {
  std::map<std::string, int64_t> calls;
  for (const ProfiledNode& node : profile.nodes)
    // Counts nodes but not copies, whose names contain " to ".
    if (node.calls > 0 && node.name.find(" to ") == std::string::npos) calls[node.name] = node.calls;
  return calls;
}

using Calls = std::map<std::string, int64_t>;

TEST(ProfileInFlight, HasTheRestOfAPartialRun) {
  for (const char* device : {"", "sim"}) {
    Session session(chain(), node_by_node(device));
    PartialRun run = session.partial_run({{"x", floats({1, -1, 2})}});
    run.advance_until("first");
    {
      const Profiler profiler = session.profiler({});
      run.advance_until("second");
      EXPECT_EQ(calls_of(profiler.profile()), (Calls{{"second", 1}})) << device;
      Profiler both = session.profiler({});
      both.pause();
      run.advance();
      EXPECT_EQ(calls_of(profiler.profile()), (Calls{{"second", 1}, {"third", 1}})) << device;
      EXPECT_EQ(calls_of(both.profile()), Calls()) << device;
      EXPECT_EQ(profiler.profile().runs.size(), 2U) << device;
    }
    EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{-1, 2, -6}));
  }
}

TEST(ProfileInFlight, EndsBetweenTwoPartsOfARun) {
  Session session(chain(), node_by_node(""));
  PartialRun run = session.partial_run({{"x", floats({1, -1, 2})}});
  Profiler profiler = session.profiler({});
  run.advance_until("second");
  profiler.pause();
  run.advance();
  EXPECT_EQ(calls_of(profiler.profile()), (Calls{{"first", 1}, {"second", 1}}));
}

TEST(ProfileInFlight, HasTheBackwardPass) {
  for (const char* device : {"", "sim"}) {
    train::JointModule module(chain(), {.session = node_by_node(device)});
    train::JointModule::Run run = module.forward({{"x", floats({1, -1, 2})}});
    const Profiler profiler = module.profiler({});
    EXPECT_EQ(run.backward(std::vector<Tensor>{floats({1, 1, 1})}).at("w").data<float>()[2], -2);
    const Calls calls = calls_of(profiler.profile());
    EXPECT_FALSE(calls.empty()) << device;
    for (const char* forward : {"first", "second", "third"}) EXPECT_FALSE(calls.contains(forward)) << device << ": " << forward;
  }
}

}  // namespace
}  // namespace treadle::testing
