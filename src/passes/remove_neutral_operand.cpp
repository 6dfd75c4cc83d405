// x * 1, x / 1, x - 0, x + 0, x ^ 1 -> x, if the result has x's type and shape (a broadcast would change the shape). In floating point, x +
// 0 changes -0 to +0, and a later division shows the difference; so floats need x + (-0) or x - (+0), which are exact.
#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

class RemoveNeutralOperand final : public Rule {
 public:
  explicit RemoveNeutralOperand(const PipelineOptions& options) : scalars_only_(options.keep_patterns) {}

  std::string_view name() const override { return "remove-neutral-operand"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.op || node.num_formal_inputs != 2) return std::nullopt;
    const NeutralOperand& neutral = node.op->neutral;
    for (int i = neutral.first; i < 2; ++i) {
      const Tensor* constant = graph.constant_tensor(node.inputs[static_cast<size_t>(i)]);
      ValueId x = node.inputs[static_cast<size_t>(1 - i)];
      if (!constant || (scalars_only_ && constant->num_elements() != 1) || !graph.same_type_and_shape(x, node.outputs[0])) continue;
      if (all_elements_are(*constant, neutral.number, neutral.negative_zero && kFloats.has(constant->dtype())))
        return Patch::replacement(node.outputs[0], x);
    }
    return std::nullopt;
  }

 private:
  const bool scalars_only_;  // true: only scalars; keeps vectors of ones, such as the scale of a normalization
};

}  // namespace

Pass remove_neutral_operand() { return rule_pass<RemoveNeutralOperand>(kBasic, kAlways, "x * 1, x / 1, x - 0 … -> x"); }

}  // namespace treadle::passes
