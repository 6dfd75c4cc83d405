// x * (1 / y) -> x / y. Rounds once less, and is the form for which tools look in normalizations.
#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

class MergeReciprocal final : public Rule {
 public:
  std::string_view name() const override { return "merge-reciprocal"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Mul") || !kFloats.has(graph.type(node.outputs[0]).dtype)) return std::nullopt;
    for (size_t i = 0; i < 2; ++i) {
      const Node* division = producer_of(graph, node.inputs[i]);
      if (!division || !division->is("Div") || !graph.is_scalar_constant(division->inputs[0], 1) || !is_used_once(graph, node.inputs[i]) ||
          graph.type(division->inputs[0]).rank() != 0)
        continue;
      Patch patch;
      patch.replace(node.outputs[0], patch.add({.op_type = "Div", .inputs = {node.inputs[1 - i], division->inputs[1]}, .name = node.name}));
      return patch;
    }
    return std::nullopt;
  }
};

}  // namespace

Pass merge_reciprocal() { return rule_pass<MergeReciprocal>(kBasic, kForPatterns, "x * (1 / y) -> x / y, in saved models"); }

}  // namespace treadle::passes
