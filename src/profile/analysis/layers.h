// Sums the nodes' times by layers of the model and phases of a training step.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "treadle/profile_report.h"

namespace treadle::profile {

class LayerTree {
 public:
  /// A layer of the model, or a phase of a training step. In branches(), each branch comes after the branch that contains it.
  struct Branch {
    std::string name;
    int parent = -1;
    bool is_phase = false;
    int64_t num_nodes = 0;
    double ms = 0, self_ms = 0, share = 0;  ///< self_ms: `ms` without that of nested layers
    std::vector<int> children = {};
  };

  explicit LayerTree(const std::vector<NodeReport>& nodes);
  const std::vector<Branch>& branches() const { return branches_; }
  /// Returns the index of the innermost layer or phase that contains a node; -1 if there is none.
  int branch_of(size_t node) const { return of_nodes_[node]; }

 private:
  void add(const NodeReport& node);
  int child(int parent, const std::string& name, bool is_phase);

  std::vector<Branch> branches_;
  std::vector<int> of_nodes_;
  std::map<std::pair<int, std::string>, int> known_;
};

std::vector<ProfileReport::Layer> layers_of(const std::vector<NodeReport>& nodes);

}  // namespace treadle::profile
