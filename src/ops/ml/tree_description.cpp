#include "ops/ml/tree_description.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "core/values/dispatch.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::TreeDescription;
using kernels::TreeMode;

[[noreturn]] void fail(std::string message) { throw Error(ErrorCode::invalid_model, std::move(message)); }

std::vector<double> numbers_of(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.num_elements()));
  visit_dtype<concat_t<FloatTypes, TypeList<uint8_t>>>(tensor.dtype(), [&]<typename T>() {
    for (T value : Tensor(tensor).contiguous().span<T>()) {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        values.push_back(static_cast<double>(static_cast<float>(value)));
      else
        values.push_back(static_cast<double>(value));
    }
  });
  return values;
}

/// Reads numbers from the attribute `name`, which has floats, or from the tensor attribute `name`_as_tensor.
std::vector<double> numbers(const Attributes& attributes, const std::string& name, bool& in_double) {
  std::string as_tensor = name + "_as_tensor";
  const auto& floats = attributes.get_floats(name);
  if (!attributes.has(as_tensor)) return {floats.begin(), floats.end()};
  const Tensor& tensor = attributes.get_tensor(as_tensor);
  if (!floats.empty() && tensor.num_elements() > 0) fail(fmt::format("both {} and {} are given", name, as_tensor));
  in_double |= tensor.dtype() == DType::float64 && tensor.num_elements() > 0;
  return tensor.num_elements() > 0 ? numbers_of(tensor) : std::vector<double>(floats.begin(), floats.end());
}

void check_length(std::string_view name, size_t length, size_t expected) {
  if (length != expected) fail(fmt::format("{} has {} elements, expected {}", name, length, expected));
}

TreeMode parse_mode(std::string_view name) {
  if (name == "BRANCH_LEQ") return TreeMode::leq;
  if (name == "LEAF") return TreeMode::leaf;
  if (name == "BRANCH_LT") return TreeMode::lt;
  if (name == "BRANCH_GTE") return TreeMode::gte;
  if (name == "BRANCH_GT") return TreeMode::gt;
  if (name == "BRANCH_EQ") return TreeMode::eq;
  if (name == "BRANCH_NEQ") return TreeMode::neq;
  fail(fmt::format("nodes_modes has \"{}\"; expected BRANCH_LEQ, BRANCH_LT, BRANCH_GTE, BRANCH_GT, BRANCH_EQ, BRANCH_NEQ or LEAF", name));
}

/// Maps (tree id, node id) to the position of the node. Most files number the nodes of each tree consecutively, and then no hash table is
/// needed.
class NodeIndex {
 public:
  NodeIndex(const std::vector<int64_t>& trees, const std::vector<int64_t>& ids) : trees_(trees), ids_(ids) {
    size_t first = 0;
    for (size_t i = 0; i < trees.size(); ++i) {
      if (i == 0 || trees[i] != trees[i - 1]) {  // looks up each tree only once
        auto [tree, added] = first_.emplace(trees[i], i);
        if (added) order_.push_back(trees[i]);
        first = tree->second;
      }
      if (ids[i] != static_cast<int64_t>(i - first)) consecutive_ = false;
    }
    if (consecutive_) return;
    for (size_t i = 0; i < trees.size(); ++i)
      if (!positions_[trees[i]].emplace(ids[i], i).second)
        fail(fmt::format("the node {} of tree {} stands twice in nodes_nodeids", ids[i], trees[i]));
  }

  /// @param near  position of a node that is probably in the same tree
  size_t find(int64_t tree, int64_t id, std::string_view what, size_t near) const {
    if (consecutive_) {
      if (near < trees_.size() && trees_[near] == tree && id >= 0) {
        // The position of node `id` relative to node `near`. The unsigned difference may wrap around; adding it to `near` wraps back.
        const size_t position = near + (static_cast<size_t>(id) - static_cast<size_t>(ids_[near]));
        if (position < ids_.size() && trees_[position] == tree && ids_[position] == id) return position;
      }
      auto first = first_.find(tree);
      if (first != first_.end() && id >= 0) {
        size_t position = first->second + static_cast<size_t>(id);
        if (position < ids_.size() && position >= first->second && trees_[position] == tree && ids_[position] == id) return position;
      }
    } else if (auto nodes = positions_.find(tree); nodes != positions_.end()) {
      if (auto found = nodes->second.find(id); found != nodes->second.end()) return found->second;
    }
    fail(fmt::format("{} refers to node {} of tree {}, which does not exist", what, id, tree));
  }

  /// Returns the tree ids in the order in which they first appear in the file.
  const std::vector<int64_t>& trees() const { return order_; }

 private:
  const std::vector<int64_t>&trees_, &ids_;
  std::unordered_map<int64_t, size_t> first_;
  std::unordered_map<int64_t, std::unordered_map<int64_t, size_t>> positions_;
  std::vector<int64_t> order_;
  bool consecutive_ = true;
};

void read_nodes(const Attributes& a, const NodeIndex& index, LegacyTrees& trees) {
  const auto& tree_ids = a.get_ints("nodes_treeids");
  const auto& features = a.get_ints("nodes_featureids");
  const auto& modes = a.get_strings("nodes_modes");
  const auto& true_ids = a.get_ints("nodes_truenodeids");
  const auto& false_ids = a.get_ints("nodes_falsenodeids");
  const auto& missing = a.get_ints("nodes_missing_value_tracks_true");
  std::vector<double> values = numbers(a, "nodes_values", trees.in_double);
  size_t count = tree_ids.size();
  check_length("nodes_featureids", features.size(), count);
  check_length("nodes_modes", modes.size(), count);
  check_length("nodes_values", values.size(), count);
  check_length("nodes_truenodeids", true_ids.size(), count);
  check_length("nodes_falsenodeids", false_ids.size(), count);
  if (!missing.empty()) check_length("nodes_missing_value_tracks_true", missing.size(), count);
  auto& nodes = trees.description.nodes;
  nodes.resize(count);
  std::vector<bool> is_child(count);
  for (size_t i = 0; i < count; ++i) {
    auto& node = nodes[i];
    node.mode = parse_mode(modes[i]);
    if (node.mode == TreeMode::leaf) continue;
    node.feature = features[i];
    node.threshold = values[i];
    node.missing_tracks_true = !missing.empty() && missing[i] != 0;
    node.true_child = index.find(tree_ids[i], true_ids[i], "nodes_truenodeids", i);
    node.false_child = index.find(tree_ids[i], false_ids[i], "nodes_falsenodeids", i);
    if (node.true_child == i || node.false_child == i) fail(fmt::format("the node {} of tree {} is its own child", i, tree_ids[i]));
    is_child[node.true_child] = is_child[node.false_child] = true;
  }
  std::unordered_map<int64_t, size_t> roots;
  for (size_t i = 0; i < count; ++i)
    if (!is_child[i]) roots.emplace(tree_ids[i], i);
  for (int64_t tree : index.trees()) {
    auto root = roots.find(tree);
    if (root == roots.end()) fail(fmt::format("tree {} has no root: every node is a child of another", tree));
    trees.description.roots.push_back(root->second);
  }
}

void read_votes(const Attributes& a, const std::string& prefix, const NodeIndex& index, LegacyTrees& trees) {
  const auto& tree_ids = a.get_ints(prefix + "_treeids");
  const auto& node_ids = a.get_ints(prefix + "_nodeids");
  const auto& targets = a.get_ints(prefix + "_ids");
  std::vector<double> weights = numbers(a, prefix + "_weights", trees.in_double);
  size_t count = targets.size();
  check_length(prefix + "_treeids", tree_ids.size(), count);
  check_length(prefix + "_nodeids", node_ids.size(), count);
  check_length(prefix + "_weights", weights.size(), count);
  // Sorts the votes by leaf. Counting sort keeps the order of votes within a leaf.
  auto& nodes = trees.description.nodes;
  std::vector<size_t> leaf(count), next(nodes.size() + 1);
  const std::string prefix_nodeids = prefix + "_nodeids";
  size_t near = 0;
  for (size_t i = 0; i < count; ++i) {
    near = leaf[i] = index.find(tree_ids[i], node_ids[i], prefix_nodeids, near);
    ++next[leaf[i] + 1];
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    next[n + 1] += next[n];
    if (nodes[n].mode != TreeMode::leaf) continue;
    nodes[n].first = next[n];
    nodes[n].last = next[n + 1];
  }
  trees.description.votes.resize(count);
  for (size_t i = 0; i < count; ++i) trees.description.votes[next[leaf[i]]++] = {targets[i], weights[i]};
}

}  // namespace

LegacyTrees describe_legacy_trees(const Attributes& attributes, std::string_view prefix, int64_t num_targets) {
  LegacyTrees trees;
  trees.description.num_targets = num_targets;
  const auto& tree_ids = attributes.get_ints("nodes_treeids");
  const auto& node_ids = attributes.get_ints("nodes_nodeids");
  check_length("nodes_nodeids", node_ids.size(), tree_ids.size());
  if (tree_ids.empty()) fail("nodes_treeids is empty: there is no tree");
  NodeIndex index(tree_ids, node_ids);
  read_nodes(attributes, index, trees);
  read_votes(attributes, std::string(prefix), index, trees);
  trees.base_values = numbers(attributes, "base_values", trees.in_double);
  return trees;
}

kernels::TreeDescription describe_tree_ensemble(const Attributes& a) {
  TreeDescription trees;
  trees.num_targets = a.get_int("n_targets", 1);
  const auto& features = a.get_ints("nodes_featureids");
  const auto& true_ids = a.get_ints("nodes_truenodeids");
  const auto& false_ids = a.get_ints("nodes_falsenodeids");
  const auto& true_leafs = a.get_ints("nodes_trueleafs");
  const auto& false_leafs = a.get_ints("nodes_falseleafs");
  const auto& missing = a.get_ints("nodes_missing_value_tracks_true");
  const auto& targets = a.get_ints("leaf_targetids");
  std::vector<double> modes = numbers_of(a.get_tensor("nodes_modes")), splits = numbers_of(a.get_tensor("nodes_splits"));
  std::vector<double> weights = numbers_of(a.get_tensor("leaf_weights"));
  std::vector<double> members = a.has("membership_values") ? numbers_of(a.get_tensor("membership_values")) : std::vector<double>();
  size_t count = features.size();
  check_length("nodes_modes", modes.size(), count);
  check_length("nodes_splits", splits.size(), count);
  check_length("nodes_truenodeids", true_ids.size(), count);
  check_length("nodes_falsenodeids", false_ids.size(), count);
  check_length("nodes_trueleafs", true_leafs.size(), count);
  check_length("nodes_falseleafs", false_leafs.size(), count);
  check_length("leaf_weights", weights.size(), targets.size());
  if (!missing.empty()) check_length("nodes_missing_value_tracks_true", missing.size(), count);
  for (size_t i = 0; i < targets.size(); ++i) trees.votes.push_back({targets[i], weights[i]});

  // The inner nodes come first, followed by one node for each leaf.
  trees.nodes.resize(count + targets.size());
  for (size_t i = 0; i < targets.size(); ++i) trees.nodes[count + i].first = i, trees.nodes[count + i].last = i + 1;
  auto child = [&](int64_t id, int64_t is_leaf, size_t node) {
    size_t limit = is_leaf ? targets.size() : count;
    if (id < 0 || static_cast<size_t>(id) >= limit)
      fail(fmt::format("tree node {} leads to {} {}, there are {}", node, is_leaf ? "leaf" : "node", id, limit));
    return static_cast<size_t>(id) + (is_leaf ? count : 0);
  };
  size_t member = 0;
  for (size_t i = 0; i < count; ++i) {
    auto& node = trees.nodes[i];
    if (!(modes[i] >= 0 && modes[i] <= 6)) fail(fmt::format("nodes_modes[{}] = {}; expected 0 to 6", i, modes[i]));
    node.mode = static_cast<TreeMode>(static_cast<int>(modes[i]));
    node.missing_tracks_true = !missing.empty() && missing[i] != 0;
    node.feature = features[i];
    node.threshold = splits[i];
    node.true_child = child(true_ids[i], true_leafs[i], i);
    node.false_child = child(false_ids[i], false_leafs[i], i);
    if (node.mode != TreeMode::member) continue;
    node.first = trees.members.size();
    while (member < members.size() && !std::isnan(members[member])) trees.members.push_back(members[member++]);
    if (member == members.size())
      fail(fmt::format("membership_values holds fewer sets, each ended by a NaN, than there are BRANCH_MEMBER nodes (node {})", i));
    ++member;
    node.last = trees.members.size();
  }
  for (int64_t root : a.get_ints("tree_roots")) trees.roots.push_back(child(root, 0, static_cast<size_t>(root)));
  if (trees.roots.empty()) fail("tree_roots is empty: there is no tree");
  return trees;
}

}  // namespace treadle::ops
