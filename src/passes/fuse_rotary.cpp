// Fuses rotary position embedding, in the forms that exporters write: x * cos + rotated(x) * sin -> FusedRotary(x, cos, sin), where
// rotated(x) is Concat(Neg(x[..., half:]), x[..., :half]), or
//   Concat of Unsqueeze(Neg(x[..., 1::2])) and Unsqueeze(x[..., ::2]) along a new last axis, viewed as x's shape: adjacent pairs.
// Results differ by rounding of the sum. Declines if intermediate values have other readers, or if the angles broadcast x.
//
// The rule rotary-layouts replaces a Transpose(0, 2, 1, 3) before or after FusedRotary by strides.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

bool is_heads(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_tensor() && type.dtype == DType::float32 && type.has_rank() && type.rank() == 4 && type.shape->back().is_const() &&
         type.shape->back().value() % 2 == 0;
}

struct Part {
  ValueId source;
  int64_t start, end, step;
};

/// Matches a Slice along the last axis only, or an output of a Split of the last axis into two.
std::optional<Part> part_of_features(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  if (!node || node->inputs.empty() || !graph.type(node->inputs[0]).has_rank()) return std::nullopt;
  const Type& type = graph.type(node->inputs[0]);
  if (type.rank() != 4 || !type.shape->back().is_const()) return std::nullopt;
  const int64_t size = type.shape->back().value();
  if (node->is("Split")) {
    const int64_t axis = node->attributes.get_int("axis");
    if ((axis != 3 && axis != -1) || node->outputs.size() != 2) return std::nullopt;
    const Dim& first = graph.type(node->outputs[0]).shape->back();
    if (!first.is_const()) return std::nullopt;
    return graph.value(id).output == 0 ? Part{node->inputs[0], 0, first.value(), 1} : Part{node->inputs[0], first.value(), size, 1};
  }
  if (!node->is("Slice") || !node->has_input(3)) return std::nullopt;
  const auto starts = constant_ints(graph, node->inputs[1]), ends = constant_ints(graph, node->inputs[2]),
             axes = constant_ints(graph, node->inputs[3]);
  if (!starts || !ends || !axes || axes->size() != 1 || starts->size() != 1 || ends->size() != 1) return std::nullopt;
  if ((*axes)[0] != 3 && (*axes)[0] != -1) return std::nullopt;
  int64_t step = 1;
  if (node->has_input(4)) {
    const auto steps = constant_ints(graph, node->inputs[4]);
    if (!steps || steps->size() != 1 || (*steps)[0] < 1) return std::nullopt;
    step = (*steps)[0];
  }
  auto place = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  return Part{node->inputs[0], place((*starts)[0]), place((*ends)[0]), step};
}

/// If the value is the result of a Neg and has one reader, returns the operand of the Neg; otherwise kNoValue.
ValueId negated(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  return node && node->is("Neg") && is_used_once(graph, id) ? node->inputs[0] : kNoValue;
}

/// If the value is (-second half, first half) of the features of x, returns x.
ValueId rotated_halves(const Graph& graph, const Node& concat) {
  if (!concat.is("Concat") || concat.inputs.size() != 2) return kNoValue;
  const int64_t axis = concat.attributes.get_int("axis");
  const ValueId negative = negated(graph, concat.inputs[0]);
  if ((axis != 3 && axis != -1) || negative == kNoValue || !is_used_once(graph, negative) || !is_used_once(graph, concat.inputs[1]))
    return kNoValue;
  const auto second = part_of_features(graph, negative), first = part_of_features(graph, concat.inputs[1]);
  if (!first || !second || first->source != second->source || first->step != 1 || second->step != 1) return kNoValue;
  const int64_t size = graph.type(first->source).shape->back().value();
  const bool halves = first->start == 0 && first->end == size / 2 && second->start == size / 2 && second->end == size && size % 2 == 0;
  return halves ? first->source : kNoValue;
}

/// If the value is (-x1, x0, -x3, x2, ...), returns x.
ValueId rotated_neighbors(const Graph& graph, const Node& flat) {
  if (!is_view(flat) || !is_used_once(graph, flat.inputs[0])) return kNoValue;
  const Node* stack = producer_of(graph, flat.inputs[0]);
  if (!stack || !stack->is("Concat") || stack->inputs.size() != 2) return kNoValue;
  const Type& stacked = graph.type(flat.inputs[0]);
  const int64_t axis = stack->attributes.get_int("axis");
  if (!stacked.has_rank() || stacked.rank() != 5 || (axis != 4 && axis != -1)) return kNoValue;
  const Node *odd = producer_of(graph, stack->inputs[0]), *even = producer_of(graph, stack->inputs[1]);
  for (const Node* node : {odd, even})
    if (!node || !is_view(*node) || !is_used_once(graph, node->outputs[0]) || !is_used_once(graph, node->inputs[0])) return kNoValue;
  // The Neg may come before or after the new axis is added.
  const ValueId negative = negated(graph, odd->inputs[0]);
  if (negative == kNoValue || !is_used_once(graph, negative)) return kNoValue;
  const auto second = part_of_features(graph, negative), first = part_of_features(graph, even->inputs[0]);
  if (!first || !second || first->source != second->source || first->step != 2 || second->step != 2) return kNoValue;
  const SymbolicShape &x = *graph.type(first->source).shape, &s = *stacked.shape;
  const int64_t size = x[3].value();
  if (first->start != 0 || second->start != 1 || first->end < size - 1 || second->end != size || size % 2 != 0) return kNoValue;
  const bool pairs = s[0] == x[0] && s[1] == x[1] && s[2] == x[2] && s[3].is_const(size / 2) && s[4].is_const(2);
  return pairs && graph.same_type_and_shape(flat.outputs[0], first->source) ? first->source : kNoValue;
}

class FuseRotary final : public Rule {
 public:
  std::string_view name() const override { return "fuse-rotary"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Add")) return std::nullopt;
    const Node *left = product(graph, node.inputs[0]), *right = product(graph, node.inputs[1]);
    if (!left || !right || left == right) return std::nullopt;
    if (!is_heads(graph, node.outputs[0])) {
      if (turns(graph, *left) || turns(graph, *right))
        declined(node, [&] {
          return fmt::format("it makes {}; float32 of rank 4 with an even last extent is needed", found(graph, node.outputs[0]));
        });
      return std::nullopt;
    }
    for (auto [straight, turned] : {std::pair(left, right), std::pair(right, left)}) {
      for (size_t i : {0U, 1U}) {
        const Node* rotated = producer_of(graph, turned->inputs[i]);
        if (!rotated) continue;
        if (!is_used_once(graph, turned->inputs[i])) {
          if (turns(graph, *turned)) declined(node, "several nodes read what is rotated, by", rotated);
          continue;
        }
        ValueId x = rotated_halves(graph, *rotated);
        const bool interleaved = x == kNoValue;
        if (interleaved) x = rotated_neighbors(graph, *rotated);
        if (x == kNoValue) {
          if (turns(graph, *turned))
            declined(node, "neither the halves of the last axis nor neighbours on it are exchanged with one sign turned, by", rotated);
          continue;
        }
        const size_t own = straight->inputs[0] == x ? 0 : 1;
        const ValueId cos = straight->inputs[1 - own], sin = turned->inputs[1 - i];
        if (straight->inputs[own] != x || !graph.same_type_and_shape(x, node.outputs[0])) {
          declined(node, "the value that is rotated is not what the other product has, or has another shape than the sum:", straight);
          continue;
        }
        if (!fits(graph, cos, x) || !fits(graph, sin, x)) {
          declined(node, [&] {
            return fmt::format("cosines {} and sines {} do not fit {}: each needs the last extent, and others of 1 or the same",
                               found(graph, cos), found(graph, sin), found(graph, x));
          });
          continue;
        }
        Attributes attributes;
        if (interleaved) attributes.set("interleaved", int64_t{1});
        Patch patch;
        patch.replace(node.outputs[0], patch.add({.op_type = "FusedRotary",
                                                  .inputs = {x, cos, sin},
                                                  .attributes = std::move(attributes),
                                                  .domain = "treadle",
                                                  .name = node.name}));
        return patch;
      }
    }
    return std::nullopt;
  }

 private:
  // Returns true if a factor of the product is a Concat of two halves, one of them negated, as in rotary embeddings.
  static bool turns(const Graph& graph, const Node& product) {
    return std::any_of(product.inputs.begin(), product.inputs.end(), [&](ValueId id) {
      const Node* concat = producer_of(graph, id);
      if (concat && is_view(*concat)) concat = producer_of(graph, concat->inputs[0]);
      if (!concat || !concat->is("Concat")) return false;
      return std::any_of(concat->inputs.begin(), concat->inputs.end(), [&](ValueId part) {
        const Node* negated = producer_of(graph, part);
        if (negated && is_view(*negated)) negated = producer_of(graph, negated->inputs[0]);
        return negated && negated->is("Neg");
      });
    });
  }
  static const Node* product(const Graph& graph, ValueId id) {
    const Node* node = producer_of(graph, id);
    return node && node->is("Mul") && is_used_once(graph, id) ? node : nullptr;
  }
  // Returns false if an extent of the angles may differ from that of x, because this would change the result's shape. There must be one
  // cosine for each feature.
  static bool fits(const Graph& graph, ValueId angles, ValueId x) {
    const Type &a = graph.type(angles), &whole = graph.type(x);
    if (!a.is_tensor() || a.dtype != DType::float32 || !a.has_rank() || a.rank() < 1 || a.rank() > 4) return false;
    for (int i = 0; i < a.rank(); ++i) {
      const Dim &extent = (*a.shape)[static_cast<size_t>(a.rank() - 1 - i)], &wanted = (*whole.shape)[static_cast<size_t>(3 - i)];
      if (i == 0 && !(extent == wanted)) return false;
      if (!extent.is_const(1) && (wanted.is_const(1) || (extent.is_const() && wanted.is_const() && extent.value() != wanted.value())))
        return false;
    }
    return true;
  }
};

class RotaryLayouts final : public Rule {
 public:
  std::string_view name() const override { return "rotary-layouts"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    const std::vector<int64_t> turn{0, 2, 1, 3};
    if (has_perm(&node, turn)) {
      const Node* rotary = producer_of(graph, node.inputs[0]);
      if (!rotary || !rotary->is("FusedRotary", "treadle") || !is_used_once(graph, node.inputs[0])) return std::nullopt;
      return changed(*rotary, rotary->inputs[0], "y_layout", node.outputs[0]);
    }
    if (!node.is("FusedRotary", "treadle")) return std::nullopt;
    const Node* before = producer_of(graph, node.inputs[0]);
    return has_perm(before, turn) ? changed(node, before->inputs[0], "x_layout", node.outputs[0]) : std::nullopt;
  }

 private:
  static std::optional<Patch> changed(const Node& rotary, ValueId x, std::string_view layout, ValueId result) {
    NodeSpec spec{
        .op_type = rotary.op_type, .inputs = rotary.inputs, .attributes = rotary.attributes, .domain = rotary.domain, .name = rotary.name};
    spec.inputs[0] = x;
    spec.attributes.set(layout, 1 - rotary.attributes.get_int(layout));
    Patch patch;
    patch.replace(result, patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

Pass fuse_rotary() {
  return rule_pass<FuseRotary>(kExtended, {.not_before_autodiff = true, .makes = "FusedRotary"},
                               "rotary position embedding written out -> FusedRotary");
}
Pass rotary_layouts() { return rule_pass<RotaryLayouts>(kExtended, kNotBeforeAutodiff, "Transposes around FusedRotary -> its strides"); }

}  // namespace treadle::passes
