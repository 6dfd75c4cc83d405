#include "profile/analysis/layers.h"

#include "profile/analysis/report_parts.h"

namespace treadle::profile {

LayerTree::LayerTree(const std::vector<NodeReport>& nodes) {
  for (const NodeReport& node : nodes) add(node);
}

void LayerTree::add(const NodeReport& node) {
  const double ms = node.mean_ms.value_or(0), share = node.share.value_or(0);
  int innermost = -1;
  if (!node.phase.empty()) innermost = child(innermost, node.phase, true);
  for (const std::string& layer : node.layers) innermost = child(innermost, layer, false);
  of_nodes_.push_back(innermost);
  if (innermost >= 0) branches_[static_cast<size_t>(innermost)].self_ms += ms;
  for (int i = innermost; i >= 0; i = branches_[static_cast<size_t>(i)].parent) {
    Branch& branch = branches_[static_cast<size_t>(i)];
    ++branch.num_nodes, branch.ms += ms, branch.share += share;
  }
}

int LayerTree::child(int parent, const std::string& name, bool is_phase) {
  const auto [found, is_new] = known_.try_emplace({parent, name}, static_cast<int>(branches_.size()));
  if (is_new) {
    if (parent >= 0) branches_[static_cast<size_t>(parent)].children.push_back(found->second);
    branches_.push_back({.name = name, .parent = parent, .is_phase = is_phase});
  }
  return found->second;
}

std::vector<ProfileReport::Layer> layers_of(const std::vector<NodeReport>& nodes) {
  std::vector<ProfileReport::Layer> list;
  const LayerTree tree(nodes);
  for (const LayerTree::Branch& branch : tree.branches())
    list.push_back({branch.name, branch.parent, branch.is_phase, branch.num_nodes, rounded(branch.ms), rounded(branch.self_ms),
                    rounded(branch.share)});
  return list;
}

}  // namespace treadle::profile
