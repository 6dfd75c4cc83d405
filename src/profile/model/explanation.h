// The result of `treadle explain`: how the optimiser changed a model, without running it.
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
  std::vector<std::string> sources;  ///< original nodes that it replaces
  std::vector<std::string> took;     ///< removed nodes whose work it does, such as "Relu relu_1"
};

struct PassReport {
  std::string pass;
  size_t nodes_before = 0, nodes_after = 0;
  int64_t elapsed_us = 0;
  std::vector<PassChange> changes;
};

/// A node of the optimised graph that needs no instruction, because its outputs are views of its inputs.
struct ViewReport {
  std::string name, op_type;
  std::vector<std::string> sources;
};

struct Explanation {
  ProfileReport plan;  ///< the plan without runs: nodes with the refusals of passes and their least times
  size_t nodes_as_read = 0;
  std::vector<PassReport> passes;
  std::vector<ViewReport> views;
};

/// The changes of an original node, or the origin of an optimised one.
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
