#include "ops/controlflow/inline_body.h"

#include <fmt/format.h>

#include <map>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::ops {

size_t num_formal_inputs(const Body& body) { return body.graph->inputs.size() - body.captures.size(); }

std::vector<ValueId> inline_body(Graph& graph, NodeId id, const Body& body, std::span<const ValueId> inputs) {
  const Graph& inside = *body.graph;
  const Node& node = graph.node(id);
  std::map<ValueId, ValueId> copies;
  for (size_t i = 0; i < inputs.size(); ++i) copies[inside.inputs[i]] = inputs[i];
  for (const auto& capture : body.captures)
    copies[capture.first] = node.inputs[static_cast<size_t>(node.num_formal_inputs + capture.second)];
  auto copy_of = [&](ValueId value) {
    if (value == kNoValue) return kNoValue;
    if (auto found = copies.find(value); found != copies.end()) return found->second;
    if (!inside.value(value).is_constant())
      throw Error(ErrorCode::invalid_model, fmt::format("the body reads \"{}\", which nothing makes", inside.value(value).name));
    return copies[value] = graph.add_constant(inside.value(value).name, inside.value(value).constant);
  };
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
    graph.move_before(graph.append(std::move(made)), id);
  }
  std::vector<ValueId> outputs;
  for (ValueId value : static_cast<const std::vector<ValueId>&>(inside.outputs)) outputs.push_back(copy_of(value));
  return outputs;
}

}  // namespace treadle::ops
