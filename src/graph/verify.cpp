// The graph's invariants: SSA form, uses that match operands, and an order in which each value is computed before it is read.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/graph.h"
#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void breach(const Graph& graph, std::string what) {
  throw Error(ErrorCode::internal, fmt::format("graph \"{}\" is inconsistent: {}", graph.name, what));
}

}  // namespace

void verify(const Graph& graph) {
  std::vector<bool> available(graph.num_values(), false);
  size_t num_uses = 0;
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
    available[i] = value.kind != Value::Kind::computed;
    num_uses += value.uses.size();
    if (graph.find_value(value.name) != ValueId{static_cast<uint32_t>(i)})
      breach(graph, fmt::format("value \"{}\" is not found by its name", value.name));
  }
  for (ValueId input : graph.inputs)
    if (graph.value(input).kind != Value::Kind::input)
      breach(graph, fmt::format("input \"{}\" is not of kind input", graph.value(input).name));

  size_t num_operands = 0, num_nodes = 0;
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id), ++num_nodes) {
    if (num_nodes > graph.num_nodes()) breach(graph, "the list of nodes is cyclic");
    const Node& node = graph.node(id);
    if (node.num_formal_inputs > static_cast<int>(node.inputs.size()))
      breach(graph, describe(node) + " has fewer operands than formal inputs");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      ++num_operands;
      const Value& value = graph.value(node.inputs[i]);
      if (!available[index_of(node.inputs[i])]) breach(graph, fmt::format("{} reads \"{}\" before it is made", describe(node), value.name));
      if (std::find(value.uses.begin(), value.uses.end(), Use{id, static_cast<int>(i)}) == value.uses.end())
        breach(graph, fmt::format("{} is not among the uses of \"{}\"", describe(node), value.name));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const Value& value = graph.value(node.outputs[i]);
      if (value.producer != id || value.output != static_cast<int>(i))
        breach(graph, fmt::format("\"{}\" does not name {} as its producer", value.name, describe(node)));
      available[index_of(node.outputs[i])] = true;
    }
    for (const Body& body : node.bodies) {
      for (const auto& [inside, position] : body.captures) {
        if (node.num_formal_inputs + position >= static_cast<int>(node.inputs.size()))
          breach(graph, describe(node) + " lacks a captured operand");
        if (std::find(body.graph->inputs.begin(), body.graph->inputs.end(), inside) == body.graph->inputs.end())
          breach(graph, describe(node) + " captures into a value that is no input of its body");
      }
      verify(*body.graph);
    }
  }
  if (num_nodes != graph.num_nodes()) breach(graph, "the list of nodes does not hold all nodes");
  if (num_uses != num_operands) breach(graph, fmt::format("{} uses for {} operands", num_uses, num_operands));
  for (ValueId output : graph.outputs)
    if (output == kNoValue || !available[index_of(output)]) breach(graph, "an output is never made");
}

}  // namespace treadle
