// A chain of Reshape, Flatten, Squeeze and Unsqueeze keeps the elements of x in order. So one Reshape of x replaces it, or x itself if the
// last shape is that of x.
#include <fmt/format.h>

#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

class MergeViews final : public Rule {
 public:
  std::string_view name() const override { return "merge-views"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!is_view(node)) return std::nullopt;
    const Node* inner = producer_of(graph, node.inputs[0]);
    if (!inner || !is_view(*inner)) return std::nullopt;
    ValueId x = inner->inputs[0];
    if (graph.same_type_and_shape(x, node.outputs[0])) return Patch::replacement(node.outputs[0], x);
    const Type &from = graph.type(x), &to = graph.type(node.outputs[0]);
    const auto target = from.has_rank() && to.has_rank() ? reshape_target(*from.shape, *to.shape) : std::nullopt;
    if (!target)
      return no_patch(node, [&] {
        return fmt::format("no constant shape makes {} of the {} before {} \"{}\": more than one extent is known only in the run",
                           found(graph, node.outputs[0]), found(graph, x), inner->op_type, inner->name);
      });
    Patch patch;
    ValueId shape = patch.constant(node.name + "/shape", Tensor::vector<int64_t>(*target));
    patch.replace(node.outputs[0], patch.add({.op_type = "Reshape", .inputs = {x, shape}, .name = node.name}));
    return patch;
  }
};

}  // namespace

Pass merge_views() {
  return rule_pass<MergeViews>(kBasic, kHidesPatterns, "Reshape, Flatten, Squeeze, Unsqueeze of one another -> one Reshape");
}

}  // namespace treadle::passes
