// Reshape to a computed shape -> Reshape to a constant one: extents that are equal in the data at the same position become 0 (copy), and
// one other symbol may become -1 (infer). The chain of Shape, Gather and Concat becomes dead. If a copied extent is 0 in a run, -1 is still
// inferred from the symbols, as inference cancels equal extents first.
#include "passes/matching.h"
#include "passes/rules.h"

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

std::unique_ptr<Rule> static_reshape() { return std::make_unique<StaticReshape>(); }

}  // namespace treadle::passes
