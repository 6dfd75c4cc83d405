// If a Loop carries a value but never changes it, the body captures the value instead. PaddlePaddle's exporter carries all weights of a
// loop, and a constant that arrives as a carried value can be neither folded nor packed. Exact even for zero iterations: the final value is
// then the initial one.
#include <vector>

#include "graph/rewriter.h"
#include "passes/list.h"

namespace treadle::passes {
namespace {

void erase_at(auto& list, size_t i) {
  if (i < list.size()) list.erase(list.begin() + static_cast<int64_t>(i));
}

void capture(Graph& graph, NodeId id, size_t carried) {
  Node& node = graph.node(id);
  Body& body = node.bodies.front();
  const ValueId operand = node.inputs[2 + carried], inside = body.graph->inputs[2 + carried];
  const int position = graph.add_capture(id, operand);
  for (size_t i = 2 + carried; i + 1 < node.inputs.size(); ++i) graph.set_input(id, i, node.inputs[i + 1]);
  graph.set_input(id, node.inputs.size() - 1, kNoValue);
  node.inputs.pop_back();
  --node.num_formal_inputs;

  erase_at(body.graph->inputs, 2 + carried);
  body.graph->inputs.push_back(inside);
  body.captures.emplace_back(inside, position);
  erase_at(body.graph->outputs, 1 + carried);
  erase_at(body.graph->output_names, 1 + carried);
  erase_at(body.graph->declared_outputs, 1 + carried);

  if (carried >= node.outputs.size()) return;
  if (const ValueId last = node.outputs[carried]; last != kNoValue) {
    graph.replace_uses(last, operand);
    graph.value(last).producer = kNoNode;
  }
  erase_at(node.outputs, carried);
  for (size_t i = carried; i < node.outputs.size(); ++i)
    if (node.outputs[i] != kNoValue) graph.value(node.outputs[i]).output = static_cast<int>(i);
}

void capture_in(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  for (NodeId id : graph.order()) {
    if (!graph.node(id).is("Loop")) continue;
    const Graph& body = *graph.node(id).bodies.front().graph;
    for (size_t k = static_cast<size_t>(graph.node(id).num_formal_inputs); k-- > 2;) {
      if (k >= body.inputs.size() || k - 1 >= body.outputs.size() || body.outputs[k - 1] != body.inputs[k]) continue;
      if (graph.node(id).inputs[k] == kNoValue) continue;
      rewriter.change([&] { return capture(graph, id, k - 2), true; });
    }
  }
}

}  // namespace

Pass capture_loop_invariants() {
  return graph_pass("capture-loop-invariants", kBasic, kAlways, "what a Loop carries but never changes is captured by its body",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph_inside_out(capture_in); });
}

}  // namespace treadle::passes
