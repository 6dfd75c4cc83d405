// Removes operators that return their input: a Reshape to the same shape, a Cast to the same dtype, a Slice of everything, a Pad by
// nothing, a Transpose that moves no axis, a Concat of one operand. The operator decides (OpDef::returns_input).
#include "graph/op_def.h"
#include "passes/rules.h"

namespace treadle::passes {
namespace {

class RemoveNoOp final : public Rule {
 public:
  explicit RemoveNoOp(bool constant_expands) : constant_expands_(constant_expands) {}
  std::string_view name() const override { return "remove-no-op"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (constant_expands_ && !(node.is("Expand") && graph.value(node.inputs[1]).is_constant())) return std::nullopt;
    if (!node.op || !node.op->returns_input || node.outputs.size() != 1 || !node.has_input(0)) return std::nullopt;
    if (!node.op->returns_input(graph, node)) return std::nullopt;
    return Patch::replacement(node.outputs[0], node.inputs[0]);
  }

 private:
  const bool constant_expands_;  // only Expand to a constant shape
};

}  // namespace

std::unique_ptr<Rule> remove_no_op() { return std::make_unique<RemoveNoOp>(false); }
std::unique_ptr<Rule> remove_expand() { return std::make_unique<RemoveNoOp>(true); }

}  // namespace treadle::passes
