// Rules only propose a Patch; the driver applies it to the graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// A proposed change: new nodes and constants, and the values that they replace.
class Patch {
 public:
  /// Adds a node before the matched one. Returns the id of its first output; the following ids are its other outputs. These ids of pending
  /// values are valid only in this patch.
  ValueId add(NodeSpec spec);
  ValueId constant(std::string name, Tensor content);
  void replace(ValueId old_value, ValueId with) { replacements_.emplace_back(old_value, with); }

  static Patch replacement(ValueId old_value, ValueId with) {
    Patch patch;
    patch.replace(old_value, with);
    return patch;
  }

 private:
  friend class PatchDriver;
  static constexpr uint32_t kPendingBit = 1U << 31U;
  struct Pending {
    bool is_constant;
    NodeSpec spec;
    std::string name;
    Tensor content;
    uint32_t first_output;
  };
  std::vector<Pending> pending_;
  std::vector<std::pair<ValueId, ValueId>> replacements_;
  uint32_t num_pending_values_ = 0;
};

/// A rewrite rule: examines a node and its neighbors, and proposes a patch or nothing.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  virtual std::optional<Patch> match(const Graph& graph, const Node& node) const = 0;
};

struct PatchOptions {
  std::vector<std::string> skip;    // names of rules to skip
  int64_t max_patches = INT64_MAX;  // stop after this many patches (to bisect a fault)
  std::function<void(std::string_view rule, const Node&)> log;
  int64_t* num_visits = nullptr;  // if not null, counts the nodes that the rules visit
};

/// Applies rules until none matches, and removes nodes without readers. @throws Error(internal) if a patch changes the dtype or shape of a
/// value. Returns the number of patches.
int64_t apply_rules(Graph& graph, std::span<const std::unique_ptr<Rule>> rules, const PatchOptions& options = {});

}  // namespace treadle
