// Fuses attention, in the forms that exporters write: MatMul(Softmax(scale * MatMul(Q, K^T) + mask), V) -> FusedAttention(Q, K, V, mask).
//
// The scale may apply to Q, K^T or the scores, or be split between them. The mask may be added, or select a constant by Where. An Expand
// may repeat heads of keys and values that queries share. PyTorch's zeros for NaN rows (Where(IsNaN(p), 0, p)) are included. Results differ
// by rounding of sums. Declines if the mask could broadcast the scores or if intermediate values have other readers.
#include <fmt/format.h>

#include <cmath>

#include "passes/factors.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

bool is_float_of_rank_4(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_tensor() && type.dtype == DType::float32 && type.has_rank() && type.rank() == 4;
}

/// Skips multiplications and divisions by constants of one element. Returns the value before them, and multiplies `scale` by their factors.
ValueId without_scale(const Graph& graph, ValueId id, double& scale) {
  for (;;) {
    const Node* node = producer_of(graph, id);
    if (!node || !is_used_once(graph, id)) return id;
    if (node->is("Mul")) {
      auto a = scalar_constant(graph, node->inputs[0]), b = scalar_constant(graph, node->inputs[1]);
      if (!a && !b) return id;
      if (!graph.same_type_and_shape(id, node->inputs[a ? 1 : 0])) return id;
      scale *= a ? *a : *b;
      id = node->inputs[a ? 1 : 0];
    } else if (node->is("Div")) {
      auto divisor = scalar_constant(graph, node->inputs[1]);
      if (!divisor || *divisor == 0 || !graph.same_type_and_shape(id, node->inputs[0])) return id;
      scale /= *divisor;
      id = node->inputs[0];
    } else {
      return id;
    }
  }
}

struct Mask {
  ValueId value = kNoValue;
  bool boolean = false, keeps = true;
  float masked = 0;
};

// Returns false if an extent of the mask may differ from that of the scores, because then the mask could change the shape of the scores.
bool fits_scores(const Graph& graph, ValueId mask, ValueId scores) {
  const Type &m = graph.type(mask), &s = graph.type(scores);
  if (!m.has_rank() || m.rank() > 4) return false;
  for (int i = 0; i < m.rank(); ++i) {
    const Dim &extent = (*m.shape)[static_cast<size_t>(m.rank() - 1 - i)], &wanted = (*s.shape)[static_cast<size_t>(3 - i)];
    if (extent.is_const(1) || extent == wanted) continue;
    if (extent.is_const() || wanted.is_const(1)) return false;
  }
  return true;
}

/// If `id` is scores with a mask, returns the scores without it, and describes the mask in `mask`. Otherwise returns `id`.
ValueId without_mask(const Graph& graph, ValueId id, Mask& mask) {
  const Node* node = producer_of(graph, id);
  if (!node || !is_used_once(graph, id)) return id;
  if (node->is("Add")) {
    for (size_t i : {0U, 1U}) {
      double ignored = 1;
      const Node* product = producer_of(graph, without_scale(graph, node->inputs[i], ignored));
      if (!product || !product->is("MatMul") || !is_float_of_rank_4(graph, node->inputs[i])) continue;
      if (!fits_scores(graph, node->inputs[1 - i], node->inputs[i])) continue;
      mask.value = node->inputs[1 - i];
      return node->inputs[i];
    }
    return id;
  }
  if (node->is("Where")) {
    for (size_t i : {1U, 2U}) {
      auto number = scalar_constant(graph, node->inputs[3 - i]);
      if (!number || !is_float_of_rank_4(graph, node->inputs[i]) || !fits_scores(graph, node->inputs[0], node->inputs[i])) continue;
      mask = {node->inputs[0], true, i == 1, static_cast<float>(*number)};
      return node->inputs[i];
    }
  }
  return id;
}

/// If the value is a transposed K, returns K, otherwise kNoValue. May add a Transpose to `patch`.
ValueId untransposed(const Graph& graph, ValueId id, const std::string& name, Patch& patch) {
  const Node* node = producer_of(graph, id);
  if (has_perm(node, {0, 1, 3, 2})) return node->inputs[0];
  if (has_perm(node, {0, 2, 3, 1}))
    return patch.add({.op_type = "Transpose",
                      .inputs = {node->inputs[0]},
                      .attributes = {{"perm", std::vector<int64_t>{0, 2, 1, 3}}},
                      .name = name + "/k"});
  // Handles a Transpose between views of rank 3, as in PyTorch's decomposition of scaled dot product attention.
  if (!node || !is_view(*node)) return kNoValue;
  const Node* turned = producer_of(graph, node->inputs[0]);
  if (!has_perm(turned, {0, 2, 1})) return kNoValue;
  const Node* flat = producer_of(graph, turned->inputs[0]);
  if (!flat || !is_view(*flat) || !is_float_of_rank_4(graph, flat->inputs[0])) return kNoValue;
  const SymbolicShape &k = *graph.type(flat->inputs[0]).shape, &t = *graph.type(id).shape, &f = *graph.type(turned->inputs[0]).shape;
  const bool same = k[0] == t[0] && k[1] == t[1] && k[2] == t[3] && k[3] == t[2] && f[1] == k[2] && f[2] == k[3];
  return same ? flat->inputs[0] : kNoValue;
}

/// If an Expand has repeated each head, returns the value before it, [batch, kv_heads, length, size]; otherwise the value itself.
ValueId unrepeated(const Graph& graph, ValueId id) {
  const Node* merged = producer_of(graph, id);
  if (!merged || !is_view(*merged)) return id;
  const Node* expand = producer_of(graph, merged->inputs[0]);
  if (!expand || !expand->is("Expand")) return id;
  const Node* inserted = producer_of(graph, expand->inputs[0]);
  if (!inserted || !is_view(*inserted) || !is_float_of_rank_4(graph, inserted->inputs[0])) return id;
  const Type &from = graph.type(inserted->inputs[0]), &one = graph.type(expand->inputs[0]), &many = graph.type(merged->inputs[0]),
             &to = graph.type(id);
  if (!one.has_rank() || !many.has_rank() || one.rank() != 5 || many.rank() != 5 || !to.has_rank() || to.rank() != 4) return id;
  const SymbolicShape &k = *from.shape, &o = *one.shape, &m = *many.shape, &t = *to.shape;
  const bool same = o[0] == k[0] && o[1] == k[1] && o[2].is_const(1) && o[3] == k[2] && o[4] == k[3] && m[0] == k[0] && m[1] == k[1] &&
                    m[2].is_const() && m[3] == k[2] && m[4] == k[3] && t[0] == k[0] && k[1].is_const() && t[1] == m[2] * k[1] &&
                    t[2] == k[2] && t[3] == k[3];
  return same ? inserted->inputs[0] : id;
}

/// Returns true for a value that the patch adds (the result of a Transpose).
bool is_of_patch(ValueId id) { return id >= ValueId{uint32_t{1} << 31U}; }

class FuseAttention final : public Rule {
 public:
  explicit FuseAttention(const PipelineOptions& options) : device_(options.device) {}
  std::string_view name() const override { return "fuse-attention"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("MatMul")) return std::nullopt;
    bool nan_to_zero = false;
    const Node* softmax = softmax_of(graph, node.inputs[0], nan_to_zero);
    if (!softmax) return std::nullopt;
    for (ValueId operand : {node.inputs[0], node.inputs[1]})
      if (!is_float_of_rank_4(graph, operand))
        return no_patch(node,
                        [&] { return fmt::format("its operand is {}; attention is fused for float32 of rank 4", found(graph, operand)); });
    const int64_t axis = softmax->attributes.get_int("axis", -1);
    if (axis != -1 && axis != 3)
      return no_patch(node, [&] { return fmt::format("the Softmax before it goes along axis {}; the last one is needed", axis); });

    Mask mask;
    double scale = 1;
    ValueId scores = without_mask(graph, softmax->inputs[0], mask);
    scores = without_scale(graph, scores, scale);
    const Node* product = producer_of(graph, scores);
    if (!product) return no_patch(node, "no node makes the scores before the Softmax; a MatMul of queries and keys is needed");
    if (!product->is("MatMul"))
      return no_patch(node, "the scores before the Softmax are no MatMul with a factor and a mask of their shape; they come from", product);
    if (!is_used_once(graph, scores))
      return no_patch(node, "several nodes read the scores before the Softmax, or they are an output of the model");
    for (ValueId operand : {product->inputs[0], product->inputs[1]})
      if (!is_float_of_rank_4(graph, operand))
        return no_patch(node, [&] { return fmt::format("queries or keys are {}; float32 of rank 4 is needed", found(graph, operand)); });
    Patch patch;
    const ValueId q = without_scale(graph, product->inputs[0], scale);
    ValueId k = untransposed(graph, without_scale(graph, product->inputs[1], scale), node.name, patch), v = node.inputs[1];
    if (k == kNoValue) return no_patch(node, "no Transpose of the last two axes makes the second operand of", product);
    if (!is_same_batch(graph, q, product->inputs[1], v))
      return no_patch(node, [&] {
        return fmt::format("queries {}, transposed keys {} and values {} are not known to have the same batch and heads", found(graph, q),
                           found(graph, product->inputs[1]), found(graph, v));
      });
    if (!is_of_patch(k)) {
      const ValueId fewer_k = unrepeated(graph, k), fewer_v = unrepeated(graph, v);
      if (fewer_k != k && fewer_v != v && heads(graph, fewer_k) == heads(graph, fewer_v)) k = fewer_k, v = fewer_v;
    }
    Attributes attributes{{"scale", static_cast<float>(scale)}};
    if (nan_to_zero) attributes.set("nan_to_zero", int64_t{1});
    if (mask.boolean) {
      attributes.set("masked_value", mask.masked);
      if (!mask.keeps) attributes.set("mask_keeps", int64_t{0});
    }
    std::vector<ValueId> inputs{q, k, v};
    if (mask.value != kNoValue) inputs.push_back(mask.value);
    NodeSpec spec{.op_type = "FusedAttention",
                  .inputs = std::move(inputs),
                  .attributes = std::move(attributes),
                  .domain = "treadle",
                  .name = node.name};
    if (device_) {
      NodeSpec asked = spec;
      if (is_of_patch(k)) asked.inputs[1] = product->inputs[1];  // not in the graph yet; this one has the same rank
      if (!device_->takes(graph, as_node(std::move(asked), node))) return no_patch(node, "the device does not compute it as attention");
    }
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }

 private:
  static Dim heads(const Graph& graph, ValueId id) { return (*graph.type(id).shape)[1]; }
  // MatMul broadcasts batches and heads; FusedAttention does not.
  static bool is_same_batch(const Graph& graph, ValueId q, ValueId k_transposed, ValueId v) {
    const SymbolicShape &a = *graph.type(q).shape, &b = *graph.type(k_transposed).shape, &c = *graph.type(v).shape;
    return a[0] == b[0] && b[0] == c[0] && a[1] == b[1] && b[1] == c[1];
  }
  static const Node* softmax_of(const Graph& graph, ValueId id, bool& nan_to_zero) {
    const Node* node = producer_of(graph, id);
    if (!node) return nullptr;
    if (!is_used_once(graph, id)) {
      if (node->is("Softmax")) declined(*node, "several nodes read the probabilities, or they are an output of the model");
      return nullptr;
    }
    if (node->is("Softmax")) return node;
    if (!node->is("Where") || scalar_constant(graph, node->inputs[1]) != 0.0) return nullptr;
    const Node *test = producer_of(graph, node->inputs[0]), *softmax = producer_of(graph, node->inputs[2]);
    if (!test || !softmax || !test->is("IsNaN") || !softmax->is("Softmax") || test->inputs[0] != node->inputs[2]) return nullptr;
    if (graph.value(node->inputs[2]).uses.size() != 2 || graph.is_output(node->inputs[2]) || !is_used_once(graph, node->inputs[0]))
      return nullptr;
    nan_to_zero = true;
    return softmax;
  }

  const DeviceForms* device_;
};

}  // namespace

Pass fuse_attention() {
  return rule_pass<FuseAttention>(kExtended, {.makes = "FusedAttention"}, "products around a Softmax -> FusedAttention");
}

}  // namespace treadle::passes
