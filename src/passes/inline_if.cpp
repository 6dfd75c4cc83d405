// Replaces an If with a constant condition by the nodes of the branch that this condition selects.
#include <string>
#include <vector>

#include "graph/rewriter.h"
#include "passes/list.h"

namespace treadle::passes {
namespace {

void inline_branch(Graph& graph, NodeId id, const Body& body) {
  Graph& branch = *body.graph;
  const Node& node = graph.node(id);
  const size_t num_values = graph.num_values();
  std::vector<ValueId> moved(branch.num_values(), kNoValue);
  for (auto [inside, position] : body.captures)
    moved[index_of(inside)] = node.inputs[static_cast<size_t>(node.num_formal_inputs + position)];
  auto move = [&](ValueId inside) {
    if (inside == kNoValue) return kNoValue;
    ValueId& outside = moved[index_of(inside)];
    if (outside != kNoValue) return outside;
    const Value& value = branch.value(inside);
    outside = graph.add_value(value.name, value.type, value.kind);
    graph.value(outside).constant = value.constant;
    graph.value(outside).known = value.known;
    graph.value(outside).doc = value.doc;
    return outside;
  };
  for (NodeId inside : branch.order()) {
    Node made = std::move(branch.node(inside));
    for (ValueId& input : made.inputs) input = move(input);
    for (ValueId& output : made.outputs) output = move(output);
    made.name = graph.unique_node_name(made.name);
    graph.move_before(graph.append(std::move(made)), id);
  }
  std::vector<ValueId> outputs = graph.node(id).outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoValue) continue;
    ValueId made = move(branch.outputs[i]);
    graph.replace_uses(outputs[i], made);
    // The branch's result gets the name of the If's output, unless it is a value of this graph already.
    if (index_of(made) < num_values) continue;
    std::string name = graph.value(outputs[i]).name;
    graph.rename_value(outputs[i], name + "/replaced");
    graph.rename_value(made, name);
  }
  graph.remove_node(id);
}

void inline_in(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.is("If")) continue;
    const Tensor* condition = graph.constant_tensor(node.inputs[0]);
    if (!condition || condition->dtype() != DType::boolean || condition->num_elements() != 1) continue;
    const Body* taken = node.body(*condition->data<bool>() ? "then_branch" : "else_branch");
    if (!taken || taken->graph->outputs.size() < node.outputs.size()) continue;
    rewriter.change(id, [&] { return inline_branch(graph, id, *taken), true; });
  }
}

}  // namespace

Pass inline_constant_if() {
  return graph_pass("inline-constant-if", kBasic, kAlways, "an If with a constant condition becomes the branch that it takes",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph_inside_out(inline_in); });
}

}  // namespace treadle::passes
