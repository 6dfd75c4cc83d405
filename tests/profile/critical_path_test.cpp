#include "profile/analysis/critical_path.h"

#include <gtest/gtest.h>

namespace treadle::profile {
namespace {

ProfiledNode step(const std::vector<std::string>& inputs, const std::string& output, const std::string& shares = {}) {
  ProfiledNode node;
  for (const std::string& input : inputs) node.inputs.push_back({.name = input});
  node.outputs.push_back({.name = output, .shares = shares});
  return node;
}

Profile graph_of(std::vector<ProfiledNode> nodes) {
  Profile profile;
  for (size_t i = 0; i < nodes.size(); ++i) profile.steps.push_back(static_cast<int32_t>(i));
  profile.nodes = std::move(nodes);
  return profile;
}

// The graph is a -> b (5) -> d, a -> c (2) -> d.
TEST(CriticalPath, FollowsTheSlowerBranch) {
  const Profile p = graph_of({step({"x"}, "a"), step({"a"}, "b"), step({"a"}, "c"), step({"b", "c"}, "d")});
  const CriticalPath path = critical_path(p, std::vector<double>{1, 5, 2, 3});
  EXPECT_EQ(path.ms, 9);
  EXPECT_EQ(path.all_ms, 11);
  EXPECT_EQ(path.nodes, (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(path.slack_ms, (std::vector<double>{0, 0, 3, 0}));
}

TEST(CriticalPath, OfAChainIsAllOfIt) {
  const Profile p = graph_of({step({"x"}, "a"), step({"a"}, "b"), step({"b"}, "c")});
  const CriticalPath path = critical_path(p, std::vector<double>{1, 2, 3});
  EXPECT_EQ(path.ms, 6);
  EXPECT_EQ(path.nodes.size(), 3U);
}

TEST(CriticalPath, GoesThroughViewsAndValuesWrittenInPlace) {
  // No node has the output v, which is a view of b, and b is computed in place over a. The critical path must go through v nevertheless.
  Profile p = graph_of({step({"x"}, "a"), step({"a"}, "b", "a"), step({}, "c")});
  p.nodes[2].inputs.push_back({.name = "v", .shares = "a"});
  EXPECT_EQ(critical_path(p, std::vector<double>{1, 2, 4}).nodes, (std::vector<int32_t>{0, 1, 2}));
}

TEST(CriticalPath, OfIndependentNodesIsTheLongest) {
  const Profile p = graph_of({step({"x"}, "a"), step({"x"}, "b")});
  const CriticalPath path = critical_path(p, std::vector<double>{4, 6});
  EXPECT_EQ(path.nodes, std::vector<int32_t>{1});
  EXPECT_EQ(path.slack_ms, (std::vector<double>{2, 0}));
  EXPECT_EQ(critical_path(Profile{}, {}).ms, 0);
}

}  // namespace
}  // namespace treadle::profile
