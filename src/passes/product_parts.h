// The operands and attributes of a FusedMatMul that computes a given product with constant weights.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "graph/graph.h"
#include "graph/patch.h"

namespace treadle::passes {

struct ProductParts {
  std::array<ValueId, 4> inputs{kNoValue, kNoValue, kNoValue, kNoValue};
  Attributes attributes;
  int64_t columns = 0;

  bool has_bias() const { return inputs[2] != kNoValue; }
  bool has_residual() const { return inputs[3] != kNoValue; }
  bool has_activation() const { return !attributes.get_string("activation").empty(); }
};

/// Returns the parts of a float32 MatMul, Gemm or FusedMatMul whose second operand is a constant matrix; nullopt if a FusedMatMul cannot
/// compute it.
std::optional<ProductParts> product_parts(const Graph& graph, const Node& node);

/// Returns a patch that computes output 0 of `node` by a FusedMatMul with these parts.
Patch fused_product(const Node& node, const ProductParts& parts);

}  // namespace treadle::passes
