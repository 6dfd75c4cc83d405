#include "ops/controlflow/inline_body.h"

#include <map>

#include "graph/inline_graph.h"

namespace treadle::ops {

size_t num_formal_inputs(const Body& body) { return body.graph->inputs.size() - body.captures.size(); }

std::vector<ValueId> inline_body(Graph& graph, NodeId id, const Body& body, std::span<const ValueId> inputs) {
  const Graph& inside = *body.graph;
  const Node& node = graph.node(id);
  std::map<ValueId, ValueId> copies;
  for (size_t i = 0; i < inputs.size(); ++i) copies[inside.inputs[i]] = inputs[i];
  for (const auto& capture : body.captures)
    copies[capture.first] = node.inputs[static_cast<size_t>(node.num_formal_inputs + capture.second)];
  inline_graph(graph, inside, copies, id);
  std::vector<ValueId> outputs;
  for (ValueId value : static_cast<const std::vector<ValueId>&>(inside.outputs)) outputs.push_back(copies.at(value));
  return outputs;
}

}  // namespace treadle::ops
