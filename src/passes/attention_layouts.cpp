// Removes Transposes around FusedAttention by reading its operands in other layouts, that is with other strides:
//   FusedAttention(Transpose(x, [0,2,1,3]), ...)                     -> FusedAttention(x, ...), layout 1
//   FusedAttention(part p of Transpose(x, [2,0,3,1,4]), ...)         -> FusedAttention(x, ...), layout 2: q, k and v are one product
//   FusedAttention(x as [batch, length, heads, size], x an output of a Split along the last axis) -> layout 2 of the Split's input
//   Transpose(FusedAttention(...), [0,2,1,3])                        -> FusedAttention(...), y in layout 1
// Results are the same, bit for bit.
#include <string>

#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

constexpr std::string_view kLayouts[] = {"q_layout", "k_layout", "v_layout"};
constexpr std::string_view kParts[] = {"q_part", "k_part", "v_part"};

struct PartOf {
  ValueId value = kNoValue;
  int64_t part = 0;
};

/// If the value is one element along axis 0 of another value, with that axis removed, returns the other value and the element's index.
std::optional<PartOf> part_along_first_axis(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  if (!node) return std::nullopt;
  if (node->is("Gather")) {
    auto index = constant_ints(graph, node->inputs[1]);
    const Type& type = graph.type(node->inputs[1]);
    if (!index || index->size() != 1 || (*index)[0] < 0 || type.rank() != 0 || node->attributes.get_int("axis") != 0) return std::nullopt;
    return PartOf{node->inputs[0], (*index)[0]};
  }
  if (!node->is("Squeeze") && !node->is("Reshape")) return std::nullopt;
  const Node* one = producer_of(graph, node->inputs[0]);
  const Type &before = graph.type(node->inputs[0]), &after = graph.type(id);
  if (!one || !before.has_rank() || !after.has_rank() || before.rank() != after.rank() + 1 || !(*before.shape)[0].is_const(1) ||
      !std::equal(after.shape->begin(), after.shape->end(), before.shape->begin() + 1))
    return std::nullopt;
  if (one->is("Split")) {
    if (one->attributes.get_int("axis") != 0 || !(*graph.type(one->inputs[0]).shape)[0].is_const(std::ssize(one->outputs)))
      return std::nullopt;
    return PartOf{one->inputs[0], graph.value(node->inputs[0]).output};
  }
  if (one->is("Slice") && one->has_input(3)) {
    auto start = constant_ints(graph, one->inputs[1]), axes = constant_ints(graph, one->inputs[3]);
    if (!start || !axes || start->size() != 1 || *axes != std::vector<int64_t>{0} || (*start)[0] < 0) return std::nullopt;
    return PartOf{one->inputs[0], (*start)[0]};
  }
  return std::nullopt;
}

/// Where FusedAttention can read an operand directly: a value, its layout, and the part of it.
struct Source {
  ValueId value;
  int64_t layout, part;
};

class AttentionLayouts final : public Rule {
 public:
  std::string_view name() const override { return "attention-layouts"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.is("Transpose")) return match_output(graph, node);
    if (!node.is("FusedAttention", "treadle")) return std::nullopt;
    for (size_t i = 0; i < 3; ++i) {
      Patch patch;
      std::optional<Source> source = source_of(graph, node, i, patch);
      if (!source) continue;
      NodeSpec spec = copy_of(node);
      spec.inputs[i] = source->value;
      spec.attributes.set(kLayouts[i], source->layout);
      if (source->layout == 2) spec.attributes.set(kParts[i], source->part);
      patch.replace(node.outputs[0], patch.add(std::move(spec)));
      return patch;
    }
    return std::nullopt;
  }

 private:
  static NodeSpec copy_of(const Node& node) {
    return {.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .domain = node.domain, .name = node.name};
  }

  static std::optional<Source> source_of(const Graph& graph, const Node& node, size_t i, Patch& patch) {
    const ValueId operand = node.inputs[i];
    const int64_t layout = node.attributes.get_int(kLayouts[i]);
    const Node* producer = producer_of(graph, operand);
    if (!producer) return std::nullopt;
    if (layout == 0) {
      if (has_perm(producer, {0, 2, 1, 3})) return Source{producer->inputs[0], 1, 0};
      auto part = part_along_first_axis(graph, operand);
      const Node* turned = part ? producer_of(graph, part->value) : nullptr;
      if (has_perm(turned, {2, 0, 3, 1, 4})) return Source{turned->inputs[0], 2, part->part};
    } else if (layout == 1 && is_view(*producer)) {
      return split_source(graph, operand, *producer, node.name, patch);
    }
    return std::nullopt;
  }

  // Matches x [batch, length, parts * heads * size] that is split along its last axis into equal parts, where one part is viewed as [batch,
  // length, heads, size].
  static std::optional<Source> split_source(const Graph& graph, ValueId operand, const Node& view, const std::string& name, Patch& patch) {
    const Node* split = producer_of(graph, view.inputs[0]);
    if (!split || !split->is("Split")) return std::nullopt;
    const Type &whole = graph.type(split->inputs[0]), &part = graph.type(view.inputs[0]), &heads = graph.type(operand);
    if (!whole.has_rank() || whole.rank() != 3 || !part.has_rank() || part.rank() != 3 || !heads.has_rank() || heads.rank() != 4)
      return std::nullopt;
    const SymbolicShape &w = *whole.shape, &p = *part.shape, &h = *heads.shape;
    const int64_t axis = split->attributes.get_int("axis"), parts = std::ssize(split->outputs);
    if ((axis != 2 && axis != -1) || !(h[0] == w[0]) || !(h[1] == w[1]) || !h[2].is_const() || !h[3].is_const() || !p[2].is_const() ||
        !w[2].is_const(parts * p[2].value()) || h[2].value() * h[3].value() != p[2].value())
      return std::nullopt;
    for (ValueId output : split->outputs)
      if (output == kNoValue || !graph.same_type_and_shape(output, view.inputs[0])) return std::nullopt;
    const SymbolicShape target{w[0], w[1], parts, h[2], h[3]};
    auto shape = reshape_target(w, target);
    if (!shape) return std::nullopt;
    const ValueId shape_value = patch.constant(name + "/parts", Tensor::vector<int64_t>(*shape));
    const ValueId packed = patch.add({.op_type = "Reshape", .inputs = {split->inputs[0], shape_value}, .name = name + "/parts"});
    return Source{packed, 2, graph.value(view.inputs[0]).output};
  }

  static std::optional<Patch> match_output(const Graph& graph, const Node& node) {
    const Node* attention = producer_of(graph, node.inputs[0]);
    if (!attention || !attention->is("FusedAttention", "treadle") || !is_used_once(graph, node.inputs[0]) ||
        attention->attributes.get_int("y_layout") != 0 || !has_perm(&node, {0, 2, 1, 3}))
      return std::nullopt;
    NodeSpec spec = copy_of(*attention);
    spec.attributes.set("y_layout", int64_t{1});
    Patch patch;
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

Pass attention_layouts() { return rule_pass<AttentionLayouts>(kExtended, kAlways, "Transposes around FusedAttention -> its strides"); }

}  // namespace treadle::passes
