// ReduceMax(Concat(a, b, c, axis), axis) -> Squeeze(Max(Max(a, b), c)), if the operands have extent 1 on that axis: the maximum of values
// that are stacked only to be reduced. The same for ReduceMin. Maxima are exact in any order. Avoids copies that interleave elements.
#include <algorithm>

#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

class StackToPairs final : public Rule {
 public:
  std::string_view name() const override { return "stack-to-pairs"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    constexpr size_t kMaxOperands = 8;  // with more operands, pairwise maxima would move more memory than the stack
    const bool is_max = node.is("ReduceMax");
    if ((!is_max && !node.is("ReduceMin")) || !node.has_input(1) || graph.type(node.inputs[0]).dtype != DType::float32) return std::nullopt;
    const Node* stack = producer_of(graph, node.inputs[0]);
    const auto axes = constant_ints(graph, node.inputs[1]);
    const Type& stacked = graph.type(node.inputs[0]);
    if (!stack || !stack->is("Concat") || stack->inputs.size() > kMaxOperands || !is_used_once(graph, node.inputs[0]) || !axes ||
        axes->size() != 1 || !stacked.has_rank())
      return std::nullopt;
    const int64_t rank = stacked.rank();
    auto normalized = [&](int64_t axis) { return axis < 0 ? axis + rank : axis; };
    const int64_t axis = normalized(axes->front());
    if (axis != normalized(stack->attributes.get_int("axis")) || axis < 0 || axis >= rank) return std::nullopt;
    for (ValueId input : stack->inputs)
      if (!graph.same_type_and_shape(input, stack->inputs[0]) || (*graph.type(input).shape)[static_cast<size_t>(axis)] != Dim(1))
        return std::nullopt;
    Patch patch;
    ValueId result = stack->inputs[0];
    for (size_t i = 1; i < stack->inputs.size(); ++i)
      result = patch.add({.op_type = is_max ? "Max" : "Min", .inputs = {result, stack->inputs[i]}, .name = node.name});
    if (node.attributes.get_int("keepdims", 1) == 0)
      result = patch.add({.op_type = "Squeeze", .inputs = {result, node.inputs[1]}, .name = node.name});
    patch.replace(node.outputs[0], result);
    return patch;
  }
};

}  // namespace

Pass stack_to_pairs() {
  return rule_pass<StackToPairs>(kExtended, kNotBeforeAutodiff, "ReduceMax(Concat(x, y)) along an axis that they lack -> Max(x, y)");
}

}  // namespace treadle::passes
