// A product with constant weights absorbs the pointwise operators that follow it: a bias, then a residual of the product's shape, then an
// activation, in this order and each at most once. MatMul(x, W) + b -> FusedMatMul(x, W, b) etc.
//
// Sums keep the order of the graph, so results are the same, bit for bit. Applies only if intermediate values have no other readers and the
// addend does not broadcast the product.
#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/product_parts.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

bool is_float(const Graph& graph, ValueId id) {
  return id != kNoValue && graph.type(id).is_tensor() && graph.type(id).dtype == DType::float32;
}

// Returns true for a scalar, and for shapes such as [N] and [1, N]: they have the same values for each row of a product with N columns.
bool is_row(const Graph& graph, ValueId id, int64_t columns, int max_rank) {
  const Type& type = graph.type(id);
  if (!is_float(graph, id) || !type.is_static() || type.rank() > max_rank) return false;
  const Shape shape = type.static_shape();
  return shape.num_elements() == 1 || (shape.rank() > 0 && shape.back() == columns && shape.num_elements() == columns);
}

bool is_product(const Node& node) {
  const bool fused = node.is("FusedMatMul", "treadle");
  return fused || node.is("MatMul") || node.is("Gemm");
}

std::optional<ProductParts> product_of(const Graph& graph, ValueId value) {
  const Node* node = producer_of(graph, value);
  if (!node || !is_product(*node)) return std::nullopt;
  std::optional<ProductParts> parts;
  if (!is_used_once(graph, value))
    declined(*node, "several nodes read its result, or it is an output of the model");
  else if (parts = product_parts(graph, *node); !parts)
    declined(*node, "its weights are no constant float32 matrix, or it scales or transposes its operands");
  return parts;
}

/// Writes the activation into the attributes of the product; returns false if a product cannot apply it.
bool take_activation(const Graph& graph, const Node& node, Attributes& attributes) {
  const ScalarFunction* function = function_of(node);
  if (!function || function->alias.empty()) return false;
  const auto parameters = parameters_of(graph, node, *function);
  if (!parameters) return false;
  attributes.set("activation", std::string(function->name));
  if (parameters->a != 0) attributes.set("activation_alpha", parameters->a);
  if (parameters->b != 0) attributes.set("activation_beta", parameters->b);
  return true;
}

class FuseIntoMatMul final : public Rule {
 public:
  std::string_view name() const override { return "fuse-into-matmul"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.outputs.empty() || !is_float(graph, node.outputs[0])) return std::nullopt;
    if (node.is("Add")) return match_add(graph, node);
    if (node.inputs.empty() || node.outputs.size() != 1 || !node.bodies.empty()) return std::nullopt;
    Attributes activation;
    if (!take_activation(graph, node, activation)) return std::nullopt;
    std::optional<ProductParts> parts = product_of(graph, node.inputs[0]);
    if (!parts) return std::nullopt;
    if (parts->has_activation()) {
      declined(*producer_of(graph, node.inputs[0]), "it ends in an activation already");
      return std::nullopt;
    }
    for (const auto& [key, value] : activation) parts->attributes.set(key, value);
    return fused_product(node, *parts);
  }

 private:
  static std::optional<Patch> match_add(const Graph& graph, const Node& node) {
    const Type& out = graph.type(node.outputs[0]);
    if (!out.has_rank()) return std::nullopt;
    for (size_t i : {0U, 1U}) {
      std::optional<ProductParts> parts = product_of(graph, node.inputs[i]);
      const ValueId other = node.inputs[1 - i];
      // Declines if the shapes are unknown before the run, because the addend may then determine the shape of the sum.
      if (!parts || parts->has_activation() || parts->has_residual() || !graph.same_type_and_shape(node.inputs[i], node.outputs[0]))
        continue;
      if (!parts->has_bias() && is_row(graph, other, parts->columns, out.rank())) {
        parts->inputs[2] = other;
        return fused_product(node, *parts);
      }
      if (graph.same_type_and_shape(other, node.outputs[0])) {
        parts->inputs[3] = other;
        return fused_product(node, *parts);
      }
      declined(*producer_of(graph, node.inputs[i]), "the operand of", &node, " is neither a row of its columns nor of its result's shape");
    }
    return std::nullopt;
  }
};

}  // namespace

std::optional<ProductParts> product_parts(const Graph& graph, const Node& node) {
  if (!is_product(node)) return std::nullopt;
  const bool fused = node.is("FusedMatMul", "treadle"), gemm = node.is("Gemm");
  const Type& weights = graph.type(node.inputs[1]);
  if (!is_stored(graph, node.inputs[1]) || !weights.is_static() || weights.dtype != DType::float32 || weights.rank() != 2 ||
      weights.static_shape().num_elements() == 0)
    return std::nullopt;
  const Type& a = graph.type(node.inputs[0]);
  if (!a.has_rank() || a.rank() < 1) return std::nullopt;
  ProductParts parts;
  if (fused) {
    parts.attributes = node.attributes;
  } else if (gemm) {
    if (node.attributes.get_int("transA") != 0 || node.attributes.get_float("alpha", 1) != 1 || node.attributes.get_float("beta", 1) != 1)
      return std::nullopt;
    if (node.attributes.get_int("transB") != 0) parts.attributes.set("transB", int64_t{1});
  }
  parts.columns = weights.static_shape()[parts.attributes.get_int("transB") != 0 ? 0 : 1];
  for (size_t i = 0; i < parts.inputs.size(); ++i)
    if (node.has_input(i)) parts.inputs[i] = node.inputs[i];
  if (gemm && parts.has_bias() && !is_row(graph, parts.inputs[2], parts.columns, 2)) return std::nullopt;
  return parts;
}

Patch fused_product(const Node& node, const ProductParts& parts) {
  Patch patch;
  std::vector<ValueId> inputs(parts.inputs.begin(), parts.inputs.end());
  while (inputs.back() == kNoValue) inputs.pop_back();
  patch.replace(
      node.outputs[0],
      patch.add(
          {.op_type = "FusedMatMul", .inputs = std::move(inputs), .attributes = parts.attributes, .domain = "treadle", .name = node.name}));
  return patch;
}

Pass fuse_into_matmul() {
  return rule_pass<FuseIntoMatMul>(kExtended, {.packed_weights = true, .not_before_autodiff = true, .makes = "FusedMatMul"},
                                   "bias, residual and activation behind a product -> FusedMatMul, outside of training");
}

}  // namespace treadle::passes
