#include "graph/inline_graph.h"

#include <fmt/format.h>

#include "treadle/error.h"

namespace treadle {

std::vector<NodeId> inline_graph(Graph& graph, const Graph& inside, std::map<ValueId, ValueId>& copies, NodeId before) {
  auto copy_of = [&](ValueId value) {
    if (value == kNoValue) return kNoValue;
    if (auto found = copies.find(value); found != copies.end()) return found->second;
    if (!inside.value(value).is_constant())
      throw Error(ErrorCode::invalid_model, fmt::format("a graph reads \"{}\", which nothing makes", inside.value(value).name));
    return copies[value] = graph.add_constant(inside.value(value).name, inside.value(value).constant);
  };
  std::vector<NodeId> nodes;
  for (NodeId at : inside.order()) {
    const Node& from = inside.node(at);
    Node made;
    made.op = from.op, made.op_type = from.op_type, made.domain = from.domain, made.overload = from.overload, made.version = from.version;
    made.name = graph.unique_node_name(from.name.empty() ? from.op_type : from.name);
    made.num_formal_inputs = from.num_formal_inputs, made.attributes = from.attributes, made.doc = from.doc;
    for (ValueId value : from.inputs) made.inputs.push_back(copy_of(value));
    for (ValueId value : from.outputs) {
      made.outputs.push_back(value == kNoValue ? kNoValue : graph.add_value(inside.value(value).name));
      if (value != kNoValue) copies[value] = made.outputs.back();
    }
    for (const Body& nested : from.bodies) made.bodies.push_back({nested.attribute, nested.graph->clone(), nested.captures});
    nodes.push_back(graph.append(std::move(made)));
    if (before != kNoNode) graph.move_before(nodes.back(), before);
  }
  for (ValueId value : static_cast<const std::vector<ValueId>&>(inside.outputs)) copy_of(value);
  return nodes;
}

}  // namespace treadle
