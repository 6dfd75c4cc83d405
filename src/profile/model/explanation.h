// What the optimiser made of a model, without running it: `treadle explain`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// What became of a node in one pass.
struct PassChange {
  std::string what;  ///< "made", "changed", "folded" or "removed"
  std::string op_type, name;
  std::vector<std::string> sources;  ///< nodes of the model as read that it stands for
  std::vector<std::string> took;     ///< "Relu relu_1": nodes that are no more, and whose work it does
};

struct PassReport {
  std::string pass;
  size_t nodes_before = 0, nodes_after = 0;
  int64_t elapsed_us = 0;
  std::vector<PassChange> changes;
};

/// A node of the optimised graph that no instruction computes: its results are its inputs' bytes.
struct ViewReport {
  std::string name, op_type;
  std::vector<std::string> sources;
};

struct Explanation {
  ProfileReport plan;  ///< of no run: its nodes have what left them alone, and their least times
  size_t nodes_as_read = 0;
  std::vector<PassReport> passes;
  std::vector<ViewReport> views;
};

/// What became of a node of the model, or where one that runs comes from.
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
