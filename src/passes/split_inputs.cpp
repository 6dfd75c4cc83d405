// Gather(x, 0), Gather(x, 1) etc. for each element of the outermost axis of an input -> Squeeze(Split(x)). Models that stack the caches of
// all layers in one state read it like this. A Gather copies, whereas the outputs of Split and Squeeze are views.
#include <algorithm>

#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

constexpr int64_t kMaxParts = 256;

// For each element of axis 0, returns the Gathers that select it. Empty if some element is not selected: if the Split has to copy, it would
// copy that element too.
std::vector<std::vector<NodeId>> find_gathers(const Graph& graph, ValueId input) {
  const Type& type = graph.type(input);
  if (!type.is_tensor() || !type.has_rank() || type.rank() == 0 || !(*type.shape)[0].is_const()) return {};
  const int64_t count = (*type.shape)[0].value();
  if (count < 2 || count > kMaxParts) return {};
  std::vector<std::vector<NodeId>> taken(static_cast<size_t>(count));
  for (const Use& use : graph.value(input).uses) {
    const Node& node = graph.node(use.node);
    if (!node.is("Gather") || use.input != 0 || node.attributes.get_int("axis") != 0) continue;
    const auto index = constant_ints(graph, node.inputs[1]);
    if (!index || index->size() != 1 || graph.type(node.inputs[1]).rank() != 0) continue;
    const int64_t element = index->front() < 0 ? index->front() + count : index->front();
    if (element >= 0 && element < count) taken[static_cast<size_t>(element)].push_back(use.node);
  }
  if (std::any_of(taken.begin(), taken.end(), [](const auto& gathers) { return gathers.empty(); })) return {};
  return taken;
}

int64_t split_all(Graph& graph, PassContext&, int64_t limit) {
  Rewriter rewriter(graph, limit);
  for (size_t i = 0; i < graph.inputs.size() && !rewriter.is_at_limit(); ++i) {
    const ValueId input = graph.inputs[i];
    const auto taken = find_gathers(graph, input);
    if (taken.empty()) continue;
    std::vector<NodeId> all;
    for (const auto& gathers : taken) all.insert(all.end(), gathers.begin(), gathers.end());
    rewriter.change(all, [&] {
      // Adds the new nodes before all others, because an input exists from the start.
      const Node& some = graph.node(taken[0][0]);
      NodeSpec spec{.op_type = "Split", .inputs = {input}, .name = some.name, .num_outputs = static_cast<int>(taken.size())};
      spec.attributes.set("axis", int64_t{0});
      spec.attributes.set("num_outputs", static_cast<int64_t>(taken.size()));
      const ValueId first = rewriter.add(std::move(spec), graph.first());
      const NodeId split = graph.value(first).producer, behind = graph.next(split);
      const ValueId axis = graph.add_constant(graph.value(input).name + "/axis", Tensor::vector<int64_t>(std::vector<int64_t>{0}));
      for (size_t k = 0; k < taken.size(); ++k) {
        const ValueId part = graph.node(split).outputs[k];
        for (NodeId gather : taken[k]) {
          const ValueId element = add_inferred(graph, {.op_type = "Squeeze", .inputs = {part, axis}, .name = graph.node(gather).name},
                                               behind, graph.node(gather).sources);
          graph.replace_uses(graph.node(gather).outputs[0], element);
        }
      }
      for (const auto& gathers : taken)
        for (NodeId gather : gathers) graph.remove_node(gather);
      return true;
    });
  }
  return rewriter.count();
}

}  // namespace

Pass split_inputs() {
  return graph_pass("split-inputs", kExtended, kNotBeforeAutodiff, "Gathers that take an input apart along its first axis -> Split",
                    split_all);
}

}  // namespace treadle::passes
