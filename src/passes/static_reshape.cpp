// Reshape to a shape that is computed from other shapes -> Reshape to a constant: extents that the data have at the same place are copied
// (0), and one more symbol may be left to be inferred (-1). The chain of Shape, Gather and Concat before it falls away. Where a copied
// extent is 0 in a run, -1 follows from the symbols as it did before: inference takes equal extents out first.
#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

class StaticReshape final : public Rule {
 public:
  std::string_view name() const override { return "static-reshape"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Reshape") || graph.value(node.inputs[1]).is_constant() || !graph.value(node.inputs[1]).known) return std::nullopt;
    const Type &in = graph.type(node.inputs[0]), &out = graph.type(node.outputs[0]);
    if (!in.has_rank() || !out.has_rank()) return std::nullopt;
    auto target = reshape_target(*in.shape, *out.shape);
    if (!target) return std::nullopt;
    return reshape_to(node, *target);
  }
};

}  // namespace

Pass static_reshape() {
  return rule_pass<StaticReshape>(kBasic, kHidesPatterns, "Reshape to a computed shape -> Reshape to a constant with 0 and -1");
}

}  // namespace treadle::passes
