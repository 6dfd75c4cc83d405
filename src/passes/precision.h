// In which arithmetic nodes are computed: the session's option `precision`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/precision.h"

namespace treadle::passes {

/// Precisions for patterns of node names; of those that match a node, the last counts.
class PrecisionRules {
 public:
  /// @param text  entries separated by ";", each a precision for all nodes or PATTERN=PRECISION, with * and ? in the pattern:
  ///   "float32;/encoder/*=bfloat16". Empty: float32.
  /// @throws Error(invalid_argument) that quotes what is wrong.
  static PrecisionRules parse(std::string_view text);

  /// Whether all nodes stay in float32.
  bool empty() const;
  /// Whether an entry names this one.
  bool names(ops::Precision precision) const;
  /// The precision of a node by its name, or that of a node of the model which it stands for.
  ops::Precision of(const Node& node) const;

 private:
  struct Entry {
    std::string pattern;
    ops::Precision precision;
  };
  std::vector<Entry> entries_;
};

/// Products by constant weights, convolutions with channels innermost and fused attention get the precision that the rules say. To be run
/// last. Where they say float32, weights that are multiples of 8-bit numbers are kept in 8 bits, which rounds nothing. Products become
/// FusedMatMul, whether or not anything is behind them. Returns how many nodes are no longer computed in float32.
/// @param weights_change  products of computed matrices become RoundedMatMul and RoundedGemm, and gradients of convolutions get it, too
int64_t assign_precision(Graph& graph, const PrecisionRules& rules, int64_t limit, bool weights_change = false);

}  // namespace treadle::passes
