// Reshape to a shape that is computed from other shapes -> Reshape to a constant: an extent that the data has at the same position becomes
// 0 (copy), and one other symbol may become -1 (infer). Nothing then reads the chain of Shape, Gather and Concat. If a copied extent is 0
// in a run, -1 is still inferred correctly, because inference cancels equal extents first.
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
