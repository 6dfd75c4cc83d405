// Rules look and propose a Patch; only the driver changes the graph.
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

/// A proposed change: new nodes and constants, and which values they replace.
class Patch {
 public:
  /// A node to add before the matched one. Returns the id of its first output; the following ids are its further outputs.
  /// Ids of pending values are valid within this patch only.
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

/// One rewrite: looks at a node and its neighbourhood, and proposes a patch or nothing.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  virtual std::optional<Patch> match(const Graph& graph, const Node& node) const = 0;
};

struct PatchOptions {
  std::vector<std::string> skip;    // rules that are not applied
  int64_t max_patches = INT64_MAX;  // stop after that many (to bisect a fault)
  std::function<void(std::string_view rule, const Node&)> log;
  int64_t* num_visits = nullptr;  // grows by one for each node that the rules are asked about
};

/// Applies rules until none matches; removes nodes whose outputs nobody reads. Refuses (Error internal) a patch that alters the dtype or
/// the shape of a value. Returns the number of patches.
int64_t apply_rules(Graph& graph, std::span<const std::unique_ptr<Rule>> rules, const PatchOptions& options = {});

}  // namespace treadle
