// Removes nodes that return their input unchanged: a Reshape to the same shape, a Cast to the same dtype, a Slice of everything, a Pad with
// no pads, a Transpose that moves no axis, a Concat of one operand. OpDef::returns_input tells which nodes do.
#include "graph/op_def.h"
#include "passes/list.h"

namespace treadle::passes {
namespace {

class RemoveNoOp : public Rule {
 public:
  std::string_view name() const override { return "remove-no-op"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.op || !node.op->returns_input || node.outputs.size() != 1 || !node.has_input(0)) return std::nullopt;
    if (!node.op->returns_input(graph, node)) return std::nullopt;
    return Patch::replacement(node.outputs[0], node.inputs[0]);
  }
};

class RemoveExpand final : public RemoveNoOp {
 public:
  std::string_view name() const override { return "remove-expand"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Expand") || !graph.value(node.inputs[1]).is_constant()) return std::nullopt;
    return RemoveNoOp::match(graph, node);
  }
};

}  // namespace

Pass remove_no_op() {
  return rule_pass<RemoveNoOp>(kBasic, kHidesPatterns, "Reshape, Cast, Slice, Pad, Transpose … that give back their input -> x");
}
Pass remove_expand() {
  return rule_pass<RemoveExpand>(kBasic, kForPatterns, "Expand to a constant that gives back its input -> x, in saved models");
}

}  // namespace treadle::passes
