// Sets the attribute `precision`, as the session asks for nodes of these names, on products with constant weights (MatMul, Gemm,
// FusedMatMul) and on operators of the treadle domain with this attribute. Weights that were dequantized from 8 bits are stored in 8 bits.
// If weights change, products of two computed matrices are included.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/pattern.h"
#include "graph/patch.h"
#include "kernels/gemm/gemm_int8_weights.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/precision.h"
#include "passes/product_parts.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

class AssignPrecision final : public Rule {
 public:
  /// @param rounds_only  true if the nodes run on a device; devices only have products of rounded operands
  AssignPrecision(const PrecisionRules& rules, bool weights_change, bool rounds_only)
      : rules_(rules), weights_change_(weights_change), rounds_only_(rounds_only) {}
  std::string_view name() const override { return "assign-precision"; }

  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.outputs.empty() || !ops::precision_of(node).empty()) return std::nullopt;
    ops::Precision precision = rules_.of(node);
    if (rounds_only_) return precision == ops::Precision::float32 ? std::nullopt : rounded(graph, node, precision);
    if (precision == ops::Precision::float32) {
      if (!has_int8_weights(graph, node)) return std::nullopt;
      precision = ops::Precision::int8_weights;
    }
    std::optional<ProductParts> parts = product_parts(graph, node);
    if (!parts && has_internal_attribute(node, ops::kPrecision)) return same_operator(node, node.op_type, node.domain, precision);
    if (!parts) return rounded(graph, node, precision);
    parts->attributes.set(ops::kPrecision, std::string(ops::name_of(precision)));
    return fused_product(node, *parts);
  }

 private:
  // Weights that are multiples of 8-bit numbers are stored in 8 bits. That is exact, and only a quarter of the memory is read.
  static bool has_int8_weights(const Graph& graph, const Node& node) {
    constexpr int64_t kWorthWhile = 4096;  // with fewer elements, storage in 8 bits gains too little
    const std::optional<ProductParts> parts = product_parts(graph, node);
    const Tensor* weights = parts ? graph.stored_tensor(parts->inputs[1]) : nullptr;  // reads the elements in place, without a copy
    if (weights == nullptr || weights->shape().num_elements() < kWorthWhile || !weights->is_contiguous()) return false;
    const bool transposed = parts->attributes.get_int("transB") != 0;
    if (transposed && reinterpret_cast<uintptr_t>(weights->raw()) % alignof(float) != 0) return false;
    const int64_t rows = weights->shape()[0], columns = weights->shape()[1];
    return kernels::are_int8_weights(reinterpret_cast<const float*>(weights->raw()), transposed ? columns : rows,
                                     transposed ? rows : columns, columns, transposed);
  }

  /// Replaces a product whose weights are not packed by one that rounds both operands (RoundedMatMul, RoundedGemm).
  std::optional<Patch> rounded(const Graph& graph, const Node& node, ops::Precision precision) const {
    if (!weights_change_ || !(node.is("MatMul") || node.is("Gemm")) || graph.type(node.outputs[0]).dtype != DType::float32)
      return std::nullopt;
    return same_operator(node, "Rounded" + node.op_type, "treadle", precision);
  }

  // Sets the precision without changing the operator. Such operators support no 8-bit weights, so Precision::int8_weights is ignored.
  static std::optional<Patch> same_operator(const Node& node, const std::string& type, const std::string& domain,
                                            ops::Precision precision) {
    if (precision == ops::Precision::int8_weights) return std::nullopt;
    NodeSpec spec{.op_type = type, .inputs = node.inputs, .attributes = node.attributes, .domain = domain, .name = node.name};
    spec.attributes.set(ops::kPrecision, std::string(ops::name_of(precision)));
    Patch patch;
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }

  const PrecisionRules& rules_;
  const bool weights_change_, rounds_only_;
};

}  // namespace

int64_t assign_precision(Graph& graph, const PrecisionRules& rules, int64_t limit, bool weights_change, bool on_device) {
  std::unique_ptr<Rule> list[] = {std::make_unique<AssignPrecision>(rules, weights_change, /*rounds_only=*/on_device)};
  return apply_rules(graph, list, {.max_patches = limit});
}

Pass assign_precision() {
  return graph_pass(
      "assign-precision", kExtended, {.not_before_autodiff = true, .only_in_memory = true, .makes = "RoundedMatMul RoundedGemm"},
      "products and convolutions to be computed in less than float32, where the session asks",
      [](Graph& graph, PassContext& context, int64_t limit) {
        return assign_precision(graph, context.options.precision, limit, context.options.weights_change, context.options.device != nullptr);
      });
}

}  // namespace treadle::passes
