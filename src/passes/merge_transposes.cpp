// Transpose(Transpose(x)) -> one Transpose, or x if the two cancel each other: axis i of the result is axis inner[outer[i]] of x.
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

// Returns the permutation, by default the reversed axes; nullopt if the rank is unknown or the attribute does not permute the axes.
std::optional<std::vector<int64_t>> permutation_of(const Graph& graph, const Node& node) {
  const Type& type = graph.type(node.inputs[0]);
  if (!type.has_rank()) return std::nullopt;
  std::vector<int64_t> perm = node.attributes.get_ints("perm");
  if (perm.empty())
    for (int64_t axis = type.rank() - 1; axis >= 0; --axis) perm.push_back(axis);
  if (perm.size() != static_cast<size_t>(type.rank())) return std::nullopt;
  for (int64_t axis : perm)
    if (axis < 0 || axis >= type.rank()) return std::nullopt;
  return perm;
}

class MergeTransposes final : public Rule {
 public:
  std::string_view name() const override { return "merge-transposes"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Transpose")) return std::nullopt;
    const Node* inner = producer_of(graph, node.inputs[0]);
    if (!inner || !inner->is("Transpose")) return std::nullopt;
    auto first = permutation_of(graph, *inner), second = permutation_of(graph, node);
    if (!first || !second) return no_patch(node, "the rank of the Transpose before it, or its own, is not known");
    std::vector<int64_t> merged;
    bool identity = true;
    for (int64_t axis : *second) {
      identity &= (*first)[static_cast<size_t>(axis)] == static_cast<int64_t>(merged.size());
      merged.push_back((*first)[static_cast<size_t>(axis)]);
    }
    ValueId x = inner->inputs[0];
    if (identity) return Patch::replacement(node.outputs[0], x);
    Patch patch;
    patch.replace(node.outputs[0],
                  patch.add({.op_type = "Transpose", .inputs = {x}, .attributes = {{"perm", std::move(merged)}}, .name = node.name}));
    return patch;
  }
};

}  // namespace

Pass merge_transposes() { return rule_pass<MergeTransposes>(kBasic, kAlways, "Transpose(Transpose(x)) -> Transpose(x) or x"); }

}  // namespace treadle::passes
