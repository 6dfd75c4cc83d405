// Arithmetic precision of nodes: the session option `precision`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/precision.h"

namespace treadle::passes {

/// Assigns precisions to nodes by patterns of their names. If several patterns match a node, the last one counts.
class PrecisionRules {
 public:
  /// @param text  entries separated by ";": a precision for all nodes, or PATTERN=PRECISION with wildcards * and ?, for example
  /// "float32;/encoder/*=bfloat16". Empty: float32
  /// @throws Error(invalid_argument) that quotes the invalid entry
  static PrecisionRules parse(std::string_view text);

  /// Returns true if all nodes stay in float32.
  bool empty() const;
  /// Returns true if an entry has this precision.
  bool names(ops::Precision precision) const;
  /// Returns the precision for the node's name, or for the name of a model node for which it stands.
  ops::Precision of(const Node& node) const;

 private:
  struct Entry {
    std::string pattern;
    ops::Precision precision;
  };
  std::vector<Entry> entries_;
};

/// Applies the rules to products with constant weights, channels-last convolutions and fused attention; must run last. In nodes that stay
/// in float32, weights that are multiples of 8-bit numbers are stored in 8 bits, which is exact. Products become FusedMatMul. Returns the
/// number of nodes that were changed.
/// @param weights_change  products of computed matrices become RoundedMatMul and RoundedGemm; gradients of convolutions are included
/// @param on_device  true: makes only RoundedMatMul and RoundedGemm
int64_t assign_precision(Graph& graph, const PrecisionRules& rules, int64_t limit, bool weights_change = false, bool on_device = false);

}  // namespace treadle::passes
