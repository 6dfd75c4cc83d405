// A product by constant weights as the parts of a FusedMatMul.
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

/// The parts of a MatMul, Gemm or FusedMatMul in float32 whose second operand is a constant matrix; nothing for what no FusedMatMul can
/// say.
std::optional<ProductParts> product_parts(const Graph& graph, const Node& node);

/// A patch that computes output 0 of `node` by a FusedMatMul of these parts.
Patch fused_product(const Node& node, const ProductParts& parts);

}  // namespace treadle::passes
