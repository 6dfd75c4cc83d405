// Prints a run as a tree: phases of a training step, layers of the model, and nodes.
#include <fmt/format.h>

#include <algorithm>

#include "profile/analysis/layers.h"
#include "profile/writers/text_table.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {
namespace {

std::string percent_text(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string ms_text(double ms) { return fmt::format("{:.4f}", ms); }

class TreeText {
 public:
  TreeText(const ProfileReport& report, const ProfileTreeOptions& options)
      : nodes_(report.nodes), tree_(nodes_), options_(options), in_node_(nodes_.size()), in_branch_(tree_.branches().size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (const int parent = nodes_[i].parent; parent >= 0)
        in_node_[static_cast<size_t>(parent)].push_back(i);
      else if (tree_.branch_of(i) >= 0)
        in_branch_[static_cast<size_t>(tree_.branch_of(i))].push_back(i);
      else
        outside_.push_back(i);
    }
    add_run(report);
    if (!report.assumed_extents.empty()) assumed_ = fmt::format("dimensions that were not given: {}\n", report.assumed_extents);
  }

  std::string text() const {
    return assumed_ +
           "\ntree of a run  (ms: mean of a run, all threads together; own: without the layers in it, or the nodes of its bodies)\n" +
           table_.to_text();
  }

 private:
  bool shows(size_t depth) const { return options_.depth <= 0 || depth <= static_cast<size_t>(options_.depth); }

  void add_run(const ProfileReport& report) {
    double run_ms = 0, nodes_ms = 0;
    for (const ProfileReport::Part& part : report.where) run_ms += part.ms;
    for (const NodeReport& node : nodes_) nodes_ms += node.mean_ms.value_or(0);
    // If nodes run concurrently, the sum of their times exceeds the run's time, and the rest of the run cannot be computed.
    table_.add({"run", std::to_string(nodes_.size()), ms_text(run_ms), nodes_ms <= run_ms ? ms_text(run_ms - nodes_ms) : "", "100.0"});
    for (size_t i = 0; i < tree_.branches().size(); ++i)
      if (tree_.branches()[i].parent < 0) add_branch(i, 1);
    for (size_t i : outside_) add_node(i, 1);
  }

  void add_branch(size_t index, size_t depth) {
    if (!shows(depth)) return;
    const LayerTree::Branch& branch = tree_.branches()[index];
    table_.add({std::string(2 * depth, ' ') + branch.name, std::to_string(branch.num_nodes), ms_text(branch.ms), ms_text(branch.self_ms),
                percent_text(branch.share)});
    for (int child : branch.children) add_branch(static_cast<size_t>(child), depth + 1);
    for (size_t node : in_branch_[index]) add_node(node, depth + 1);
  }

  void add_node(size_t index, size_t depth) {
    if (!options_.nodes || !shows(depth)) return;
    const NodeReport& node = nodes_[index];
    const double ms = node.mean_ms.value_or(0);
    table_.add({std::string(2 * depth, ' ') + node.op_type + " " + node.name, "", ms_text(ms + bodies_ms(index)),
                in_node_[index].empty() ? "" : ms_text(ms), percent_text(node.share.value_or(0))});
    for (size_t inner : in_node_[index]) add_node(inner, depth + 1);
  }

  double bodies_ms(size_t index) const {
    double ms = 0;
    for (size_t inner : in_node_[index]) ms += nodes_[inner].mean_ms.value_or(0) + bodies_ms(inner);
    return ms;
  }

  const std::vector<NodeReport>& nodes_;
  const LayerTree tree_;
  const ProfileTreeOptions options_;
  std::vector<std::vector<size_t>> in_node_, in_branch_;  // indices of the nodes in each node's bodies, and of those directly in each layer
  std::vector<size_t> outside_;
  std::string assumed_;
  TextTable table_{{{"", false, 72}, {"nodes", true}, {"ms", true}, {"own ms", true}, {"%", true}}};
};

}  // namespace

}  // namespace profile

std::string profile_to_tree(const ProfileReport& report, const ProfileTreeOptions& options) {
  return profile::TreeText(report, options).text();
}

}  // namespace treadle
