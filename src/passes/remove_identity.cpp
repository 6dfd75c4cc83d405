// Identity(x) -> x, for values of all kinds (tensors, sequences etc.).
#include "passes/list.h"

namespace treadle::passes {
namespace {

class RemoveIdentity final : public Rule {
 public:
  std::string_view name() const override { return "remove-identity"; }
  std::optional<Patch> match(const Graph&, const Node& node) const override {
    if (!node.is("Identity")) return std::nullopt;
    return Patch::replacement(node.outputs[0], node.inputs[0]);
  }
};

}  // namespace

Pass remove_identity() { return rule_pass<RemoveIdentity>(kBasic, kAlways, "Identity(x) -> x"); }

}  // namespace treadle::passes
