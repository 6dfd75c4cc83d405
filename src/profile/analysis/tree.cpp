#include "profile/analysis/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "profile/analysis/report_parts.h"
#include "treadle/profile.h"

namespace treadle {
namespace profile {
namespace {

struct Branch {
  std::string name;
  int parent = -1;
  size_t num_nodes = 0;
  double ms = 0, self_ms = 0, share = 0;
  std::vector<int> children = {};
};

class LayerTree {
 public:
  explicit LayerTree(const Document& nodes) {
    for (size_t i = 0; i < nodes.size(); ++i) add(nodes.at(i));
  }
  const std::vector<Branch>& branches() const { return branches_; }
  /// The innermost layer, or phase, of a node; -1: it has neither.
  int branch_of(size_t node) const { return of_nodes_[node]; }
  bool is_phase(size_t branch) const { return is_phase_[branch]; }

 private:
  void add(const Document& node) {
    const double ms = node.value("mean_ms", 0.0), share = node.value("share", 0.0);
    int innermost = -1;
    if (const std::string phase = node.value("phase", ""); !phase.empty()) innermost = child(innermost, phase, true);
    for (const Document& layer : node.value("layers", Document::array())) innermost = child(innermost, layer.get<std::string>(), false);
    of_nodes_.push_back(innermost);
    if (innermost >= 0) branches_[static_cast<size_t>(innermost)].self_ms += ms;
    for (int i = innermost; i >= 0; i = branches_[static_cast<size_t>(i)].parent) {
      Branch& branch = branches_[static_cast<size_t>(i)];
      ++branch.num_nodes, branch.ms += ms, branch.share += share;
    }
  }

  int child(int parent, const std::string& name, bool is_phase) {
    const auto [found, is_new] = known_.try_emplace({parent, name}, static_cast<int>(branches_.size()));
    if (is_new) {
      if (parent >= 0) branches_[static_cast<size_t>(parent)].children.push_back(found->second);
      branches_.push_back({.name = name, .parent = parent});
      is_phase_.push_back(is_phase);
    }
    return found->second;
  }

  std::vector<Branch> branches_;
  std::vector<bool> is_phase_;
  std::vector<int> of_nodes_;
  std::map<std::pair<int, std::string>, int> known_;
};

std::string percent_text(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string ms_text(double ms) { return fmt::format("{:.4f}", ms); }

class TreeText {
 public:
  TreeText(const Document& document, const ProfileTreeOptions& options)
      : nodes_(document.at("nodes")), tree_(nodes_), options_(options), in_node_(nodes_.size()), in_branch_(tree_.branches().size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const int parent = nodes_.at(i).value("parent", -1);
      if (parent >= 0 && static_cast<size_t>(parent) < i)
        in_node_[static_cast<size_t>(parent)].push_back(i);
      else if (tree_.branch_of(i) >= 0)
        in_branch_[static_cast<size_t>(tree_.branch_of(i))].push_back(i);
      else
        outside_.push_back(i);
    }
    add_run(document);
    if (const std::string assumed = document.value("assumed_extents", ""); !assumed.empty())
      assumed_ = fmt::format("dimensions that were not given: {}\n", assumed);
  }

  std::string text() const {
    return assumed_ +
           "\ntree of a run  (ms: mean of a run, all threads together; own: without the layers in it, or the nodes of its bodies)\n" +
           table_.to_text();
  }

 private:
  bool shows(size_t depth) const { return options_.depth <= 0 || depth <= static_cast<size_t>(options_.depth); }

  void add_run(const Document& document) {
    double run_ms = 0, nodes_ms = 0;
    for (const Document& part : document.value("where", Document::array())) run_ms += part.at("ms").get<double>();
    for (const Document& node : nodes_) nodes_ms += node.value("mean_ms", 0.0);
    // With nodes at once, their times sum to more than the run.
    table_.add({"run", std::to_string(nodes_.size()), ms_text(run_ms), nodes_ms <= run_ms ? ms_text(run_ms - nodes_ms) : "", "100.0"});
    for (size_t i = 0; i < tree_.branches().size(); ++i)
      if (tree_.branches()[i].parent < 0) add_branch(i, 1);
    for (size_t i : outside_) add_node(i, 1);
  }

  void add_branch(size_t index, size_t depth) {
    if (!shows(depth)) return;
    const Branch& branch = tree_.branches()[index];
    table_.add({std::string(2 * depth, ' ') + branch.name, std::to_string(branch.num_nodes), ms_text(branch.ms), ms_text(branch.self_ms),
                percent_text(branch.share)});
    for (int child : branch.children) add_branch(static_cast<size_t>(child), depth + 1);
    for (size_t node : in_branch_[index]) add_node(node, depth + 1);
  }

  void add_node(size_t index, size_t depth) {
    if (!options_.nodes || !shows(depth)) return;
    const Document& node = nodes_.at(index);
    const double ms = node.value("mean_ms", 0.0);
    table_.add({std::string(2 * depth, ' ') + node.value("op", "") + " " + node.value("name", ""), "", ms_text(ms + bodies_ms(index)),
                in_node_[index].empty() ? "" : ms_text(ms), percent_text(node.value("share", 0.0))});
    for (size_t inner : in_node_[index]) add_node(inner, depth + 1);
  }

  double bodies_ms(size_t index) const {
    double ms = 0;
    for (size_t inner : in_node_[index]) ms += nodes_.at(inner).value("mean_ms", 0.0) + bodies_ms(inner);
    return ms;
  }

  const Document& nodes_;
  const LayerTree tree_;
  const ProfileTreeOptions options_;
  std::vector<std::vector<size_t>> in_node_, in_branch_;  // nodes: of bodies; of no layer further in
  std::vector<size_t> outside_;
  std::string assumed_;
  TextTable table_{{{"", false, 72}, {"nodes", true}, {"ms", true}, {"own ms", true}, {"%", true}}};
};

}  // namespace

Document layers_json(const Document& nodes) {
  const LayerTree tree(nodes);
  Document list = Document::array();
  for (size_t i = 0; i < tree.branches().size(); ++i) {
    const Branch& branch = tree.branches()[i];
    Document json{{"name", branch.name}};
    if (branch.parent >= 0) json["parent"] = branch.parent;
    if (tree.is_phase(i)) json["is_phase"] = true;
    json["nodes"] = branch.num_nodes;
    json["ms"] = rounded(branch.ms);
    json["self_ms"] = rounded(branch.self_ms);
    json["share"] = rounded(branch.share);
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace profile

std::string profile_to_tree(std::string_view json, const ProfileTreeOptions& options) {
  using namespace profile;
  return reading([&] {
    const Document document = parse_document(json);
    return TreeText(document, options).text();
  });
}

}  // namespace treadle
