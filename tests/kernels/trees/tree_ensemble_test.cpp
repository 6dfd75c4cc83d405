#include "kernels/trees/tree_ensemble.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

using test::Random;

struct Options {
  bool only_leq = false;
  int64_t features = 4, targets = 1, most_votes = 1;
};

/// Appends a random subtree and returns its root.
size_t add_tree(TreeDescription& trees, Random& random, const Options& options, int depth) {
  size_t index = trees.nodes.size();
  trees.nodes.emplace_back();
  if (depth == 0 || random.integer(0, 4) == 0) {
    trees.nodes[index].first = trees.votes.size();
    for (int64_t i = random.integer(1, options.most_votes); i > 0; --i)
      trees.votes.push_back({random.integer(0, options.targets - 1), random.vector<double>(1)[0]});
    trees.nodes[index].last = trees.votes.size();
    return index;
  }
  TreeDescription::Node node;
  node.mode = options.only_leq ? TreeMode::leq : static_cast<TreeMode>(random.integer(0, 6));
  node.missing_tracks_true = !options.only_leq && random.coin();
  node.feature = random.integer(0, options.features - 1);
  node.threshold = static_cast<double>(random.integer(-2, 2));  // thresholds are whole numbers like the features, so that some are equal
  if (node.mode == TreeMode::member) {
    node.first = trees.members.size();
    for (int64_t i = random.integer(0, 3); i > 0; --i) trees.members.push_back(static_cast<double>(random.integer(-2, 2)));
    node.last = trees.members.size();
  }
  node.true_child = add_tree(trees, random, options, depth - 1);
  node.false_child = add_tree(trees, random, options, depth - 1);
  trees.nodes[index] = node;
  return index;
}

bool holds(const TreeDescription& trees, const TreeDescription::Node& node, double x) {
  if (std::isnan(x)) return node.missing_tracks_true || node.mode == TreeMode::neq;
  switch (node.mode) {
    case TreeMode::leq: return x <= node.threshold;
    case TreeMode::lt: return x < node.threshold;
    case TreeMode::gte: return x >= node.threshold;
    case TreeMode::gt: return x > node.threshold;
    case TreeMode::eq: return x == node.threshold;
    case TreeMode::neq: return x != node.threshold;
    default: break;
  }
  for (size_t i = node.first; i < node.last; ++i)
    if (trees.members[i] == x) return true;
  return false;
}

template <typename X>
std::vector<double> reference(const TreeDescription& trees, const std::vector<X>& x, int64_t rows, int64_t columns,
                              TreeAggregate aggregate) {
  std::vector<double> scores(static_cast<size_t>(rows * trees.num_targets));
  std::vector<bool> voted(scores.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t root : trees.roots) {
      size_t at = root;
      while (trees.nodes[at].mode != TreeMode::leaf) {
        const auto& node = trees.nodes[at];
        at = holds(trees, node, static_cast<double>(x[static_cast<size_t>(row * columns + node.feature)])) ? node.true_child
                                                                                                           : node.false_child;
      }
      for (size_t i = trees.nodes[at].first; i < trees.nodes[at].last; ++i) {
        auto k = static_cast<size_t>(row * trees.num_targets + trees.votes[i].target);
        double weight = trees.votes[i].weight;
        if (aggregate == TreeAggregate::minimum)
          scores[k] = voted[k] ? std::min(scores[k], weight) : weight;
        else if (aggregate == TreeAggregate::maximum)
          scores[k] = voted[k] ? std::max(scores[k], weight) : weight;
        else
          scores[k] += weight;
        voted[k] = true;
      }
    }
  }
  if (aggregate == TreeAggregate::average)
    for (double& score : scores) score /= static_cast<double>(trees.roots.size());
  return scores;
}

TreeDescription random_trees(Random& random, const Options& options) {
  TreeDescription trees;
  trees.num_targets = options.targets;
  for (int64_t i = random.integer(1, 20); i > 0; --i) {
    size_t root = add_tree(trees, random, options, static_cast<int>(random.integer(0, 6)));
    trees.roots.push_back(root);
  }
  return trees;
}

template <typename T, typename X>
void check(Random& random, const Options& options) {
  TreeDescription trees = random_trees(random, options);
  int64_t rows = random.integer(0, 1) == 0 ? random.integer(1, 9) : random.integer(10, 150),
          columns = options.features + random.integer(0, 2);
  auto x = random.integers<X>(rows * columns, -3, 3);
  if constexpr (std::is_floating_point_v<X>)
    for (X& value : x)
      if (random.integer(0, 9) == 0) value = std::numeric_limits<X>::quiet_NaN();
  TreeEnsemble<T> ensemble(trees);
  for (TreeAggregate aggregate : {TreeAggregate::sum, TreeAggregate::average, TreeAggregate::minimum, TreeAggregate::maximum}) {
    std::vector<T> scores(static_cast<size_t>(rows * options.targets));
    ensemble.run(x.data(), rows, columns, aggregate, scores.data(), nullptr);
    test::expect_near(scores, reference(trees, x, rows, columns, aggregate), 1e-5);
  }
}

TEST(TreeEnsemble, WalksRandomForestsAsTheirDescriptionSays) {
  Random random;
  for (int i = 0; i < 60; ++i) {
    check<float, float>(random, {.only_leq = true});
    check<float, float>(random, {.features = 7, .targets = 3, .most_votes = 4});
    check<double, double>(random, {.targets = 2});
    check<float, int64_t>(random, {.targets = 2, .most_votes = 2});
    check<double, float>(random, {});
  }
}

TreeDescription stump(TreeMode mode, double threshold) {
  TreeDescription trees;
  trees.nodes = {
      {.mode = mode, .threshold = threshold, .true_child = 1, .false_child = 2}, {.first = 0, .last = 1}, {.first = 1, .last = 2}};
  trees.roots = {0};
  trees.votes = {{0, 1}, {0, 0}};
  return trees;
}

TEST(TreeEnsemble, ComparesAtTheEndsOfTheNumberLine) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  auto takes = [](TreeMode mode, double threshold, float x) {
    float score;
    TreeEnsemble<float>(stump(mode, threshold)).run(&x, 1, 1, TreeAggregate::sum, &score, nullptr);
    return score == 1;
  };
  EXPECT_FALSE(takes(TreeMode::lt, -infinity, -infinity));
  EXPECT_TRUE(takes(TreeMode::gte, -infinity, -infinity));
  EXPECT_TRUE(takes(TreeMode::lt, infinity, std::numeric_limits<float>::max()));
  EXPECT_FALSE(takes(TreeMode::lt, infinity, infinity));
  EXPECT_TRUE(takes(TreeMode::lt, 0, -tiny));
  EXPECT_FALSE(takes(TreeMode::lt, 0, -0.0F));
  EXPECT_TRUE(takes(TreeMode::gte, 0, -0.0F));
  EXPECT_TRUE(takes(TreeMode::eq, 0, -0.0F));
}

TEST(TreeEnsemble, RefusesCyclesAndForeignIndices) {
  TreeDescription cycle = stump(TreeMode::leq, 0);
  cycle.nodes[0].false_child = 0;
  EXPECT_THROW(TreeEnsemble<float>{cycle}, Error);
  cycle.nodes[0].true_child = 0;
  EXPECT_THROW(TreeEnsemble<float>{cycle}, Error);
  TreeDescription outside = stump(TreeMode::leq, 0);
  outside.nodes[0].true_child = 3;
  EXPECT_THROW(TreeEnsemble<float>{outside}, Error);
  TreeDescription target = stump(TreeMode::leq, 0);
  target.votes[0].target = 1;
  EXPECT_THROW(TreeEnsemble<float>{target}, Error);
  TreeDescription feature = stump(TreeMode::leq, 0);
  feature.nodes[0].feature = -1;
  EXPECT_THROW(TreeEnsemble<float>{feature}, Error);
}

// A chain of equalities, as converters write categories: rows 1, 2 and 3 go on to node 4, which all three have as their true child.
TEST(TreeEnsemble, SharesABranchAmongItsParents) {
  TreeDescription trees;
  trees.nodes = {{.mode = TreeMode::eq, .threshold = 1, .true_child = 4, .false_child = 1},
                 {.mode = TreeMode::eq, .threshold = 2, .true_child = 4, .false_child = 2},
                 {.mode = TreeMode::eq, .threshold = 3, .true_child = 4, .false_child = 3},
                 {.first = 0, .last = 1},
                 {.mode = TreeMode::leq, .feature = 1, .threshold = 0.5, .true_child = 6, .false_child = 5},
                 {.first = 1, .last = 2},
                 {.first = 2, .last = 3}};
  trees.votes = {{0, 30}, {0, 50}, {0, 60}};
  trees.roots = {0};
  const float x[] = {1, 0, 2, 1, 3, 0, 4, 0};
  float scores[4];
  TreeEnsemble<float>(trees).run(x, 4, 2, TreeAggregate::sum, scores, nullptr);
  EXPECT_EQ(std::vector<float>(scores, scores + 4), (std::vector<float>{60, 50, 60, 30}));
  trees.nodes[4].false_child = 0;  // the false branch leads from the shared node back to the root
  EXPECT_THROW(TreeEnsemble<float>{trees}, Error);
}

// Each level has two branches, and both lead to both branches of the next level. So the number of paths doubles from level to level, and
// that of nodes does not.
TEST(TreeEnsemble, TakesNoLongerForBranchesThatShareAllTheirBranches) {
  constexpr size_t kLevels = 60;
  TreeDescription trees;
  for (size_t level = 0; level < kLevels; ++level)
    for (size_t i = 0; i < 2; ++i)
      trees.nodes.push_back(
          {.mode = TreeMode::leq, .threshold = static_cast<double>(i), .true_child = 2 * level + 2, .false_child = 2 * level + 3});
  trees.nodes.push_back({.first = 0, .last = 1});
  trees.nodes.push_back({.first = 1, .last = 2});
  trees.votes = {{0, 1}, {0, 2}};
  trees.roots = {0};
  const float x[] = {-1, 5};
  float scores[2];
  TreeEnsemble<float>(trees).run(x, 2, 1, TreeAggregate::sum, scores, nullptr);
  EXPECT_EQ(scores[0], 1);
  EXPECT_EQ(scores[1], 2);
}

TEST(TreeEnsemble, RefusesRowsThatLackAFeature) {
  TreeDescription trees = stump(TreeMode::leq, 0);
  trees.nodes[0].feature = 2;
  float x[2] = {}, score;
  EXPECT_THROW(TreeEnsemble<float>(trees).run(x, 1, 2, TreeAggregate::sum, &score, nullptr), Error);
}

TEST(TreeEnsemble, WalksTreesDeeperThanAStackAllows) {
  TreeDescription trees;
  constexpr size_t kDepth = 200000;
  for (size_t i = 0; i < kDepth; ++i)
    trees.nodes.push_back({.mode = TreeMode::leq, .threshold = static_cast<double>(i), .true_child = kDepth, .false_child = i + 1});
  trees.nodes.push_back({.first = 0, .last = 1});
  trees.roots = {0};
  trees.votes = {{0, 7}};
  float x = 1e9F, score;
  TreeEnsemble<float>(trees).run(&x, 1, 1, TreeAggregate::sum, &score, nullptr);
  EXPECT_EQ(score, 7);
}

}  // namespace
}  // namespace treadle::kernels
