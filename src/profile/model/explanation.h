// The result of `treadle explain`: how the optimizer changed a model, without running it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// The effect of one pass on a node.
struct PassChange {
  std::string what;  ///< "made", "changed", "folded" or "removed"
  std::string op_type, name;
  std::vector<std::string> sources;  ///< the model's nodes that this node replaces
  std::vector<std::string> took;     ///< removed nodes whose operation it includes, such as "Relu relu_1"
};

struct PassReport {
  std::string pass;
  size_t nodes_before = 0, nodes_after = 0;
  int64_t elapsed_us = 0;
  std::vector<PassChange> changes;
};

/// A node of the optimized graph that is not executed, because its outputs are views of its inputs.
struct ViewReport {
  std::string name, op_type;
  std::vector<std::string> sources;
};

struct Explanation {
  ProfileReport plan;  ///< nodes with the reasons why passes refused them, and estimated least times; no runs
  size_t nodes_as_read = 0;
  std::vector<PassReport> passes;
  std::vector<ViewReport> views;
};

/// How passes changed a node of the original model, or from which nodes they made a node of the optimized graph.
struct NodeHistory {
  struct Step {
    std::string pass, what;
  };
  std::string node, assumed_extents;
  std::vector<Step> steps;
  std::vector<NodeReport> runs_as;
  std::vector<ViewReport> views;
};

std::string explanation_to_json(const Explanation& explanation);
std::string history_to_json(const NodeHistory& history);

}  // namespace treadle::profile
