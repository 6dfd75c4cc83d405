// Identity(x) -> x, for values of any type.
#include "passes/rules.h"

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

std::unique_ptr<Rule> remove_identity() { return std::make_unique<RemoveIdentity>(); }

}  // namespace treadle::passes
