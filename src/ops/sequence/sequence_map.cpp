// Decomposes SequenceMap (opset 17), which applies a body to each element of a sequence. It becomes a Loop, whose iterations each read one
// element and append one result.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "graph/infer.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Checks the node before the graph is changed.
void check(const Graph& graph, const Node& node) {
  if (node.bodies.size() != 1) throw Error(ErrorCode::invalid_model, "the attribute \"body\" (a graph) is missing");
  const Body& body = node.bodies[0];
  const size_t num_inputs = body.graph->inputs.size() - body.captures.size(), num_outputs = body.graph->outputs.size();
  if (num_inputs != static_cast<size_t>(node.num_formal_inputs) || num_outputs != node.outputs.size())
    throw Error(ErrorCode::invalid_model, fmt::format("the body has {} inputs and {} outputs, the node {} and {}", num_inputs, num_outputs,
                                                      node.num_formal_inputs, node.outputs.size()));
  for (size_t i = 1; i < num_inputs; ++i)
    if (graph.type(node.inputs[i]).kind == Type::Kind::unknown)
      throw Error(ErrorCode::not_implemented, fmt::format("SequenceMap needs to know whether its input {} is a tensor or a sequence", i));
}

void decompose(Graph& graph, NodeId id) {
  check(graph, graph.node(id));
  std::vector<ValueId> operands = graph.node(id).inputs, results = graph.node(id).outputs;
  auto num_formal = static_cast<size_t>(graph.node(id).num_formal_inputs);
  std::string name = graph.node(id).name;
  Body body{"body", std::move(graph.node(id).bodies[0].graph), std::move(graph.node(id).bodies[0].captures)};
  Graph& inside = *body.graph;

  // Adds the Loop; its body follows below.
  NodeId length = graph.add_node({.op_type = "SequenceLength", .inputs = {operands[0]}}, id);
  std::vector<ValueId> carried{graph.node(length).outputs[0], kNoValue};
  for (size_t k = 0; k < results.size(); ++k) {
    DType dtype = inside.type(inside.outputs[k]).dtype;
    if (dtype == DType::undefined && k < inside.declared_outputs.size()) dtype = inside.declared_outputs[k].dtype;
    if (dtype == DType::undefined && results[k] != kNoValue && graph.type(results[k]).element)
      dtype = graph.type(results[k]).element->dtype;
    Attributes attributes;
    if (dtype != DType::undefined) attributes.set("dtype", static_cast<int64_t>(dtype));
    NodeId empty = graph.add_node({.op_type = "SequenceEmpty", .attributes = std::move(attributes)}, id);
    carried.push_back(graph.node(empty).outputs[0]);
  }
  NodeId loop = graph.add_node({.op_type = "Loop", .inputs = carried, .name = name, .num_outputs = static_cast<int>(results.size())}, id);

  // Builds the body of the Loop. It reads, from each sequence, the element of the iteration. Other inputs of the old body become captures.
  std::vector<ValueId> old_inputs = std::exchange(inside.inputs, {});
  ValueId round = inside.add_value("round", Type::tensor(DType::int64, SymbolicShape{}), Value::Kind::input);
  ValueId condition = inside.add_value("condition", Type::tensor(DType::boolean, SymbolicShape{}), Value::Kind::input);
  inside.inputs = {round, condition};
  std::vector<ValueId> grown;
  for (size_t k = 0; k < results.size(); ++k) {
    grown.push_back(inside.add_value("grown", {}, Value::Kind::input));
    inside.inputs.push_back(grown.back());
  }
  std::vector<std::pair<ValueId, int>> captures;
  for (size_t i = 0; i < num_formal; ++i) {
    ValueId input = old_inputs[i];
    const Type& outer = graph.type(operands[i]);
    if (i == 0 || outer.kind == Type::Kind::sequence) {
      NodeId at = inside.add_node({.op_type = "SequenceAt", .inputs = {kNoValue, round}}, inside.first());
      ValueId element = inside.node(at).outputs[0];
      inside.replace_uses(input, element);
      inside.value(element).type = inside.type(input);
      inside.value(input).type = outer;
      inside.set_input(at, 0, input);
    }
    inside.inputs.push_back(input);
    captures.emplace_back(input, graph.add_capture(loop, operands[i]));
  }
  for (size_t i = 0; i < body.captures.size(); ++i) {
    auto [value, position] = body.captures[i];
    inside.inputs.push_back(old_inputs[num_formal + i]);
    captures.emplace_back(value, graph.add_capture(loop, operands[num_formal + static_cast<size_t>(position)]));
  }
  body.captures = std::move(captures);
  for (size_t k = 0; k < results.size(); ++k) {
    NodeId insert = inside.add_node({.op_type = "SequenceInsert", .inputs = {grown[k], inside.outputs[k]}});
    inside.outputs.set(k, inside.node(insert).outputs[0]);
  }
  inside.outputs.insert(inside.outputs.begin(), condition);
  inside.declared_outputs.clear();  // they declare elements, not sequences

  graph.node(loop).bodies.push_back(std::move(body));
  for (size_t k = 0; k < results.size(); ++k)
    if (results[k] != kNoValue) graph.replace_uses(results[k], graph.node(loop).outputs[k]);
  graph.remove_node(id);
}

}  // namespace

std::vector<OpDef> sequence_map_ops() {
  return {{.name = "SequenceMap",
           .since = {17},
           .inputs = {{"input_sequence", kSequences}, {"additional_inputs", kAllTensors | kSequences, "", Presence::variadic}},
           .outputs = {{"out_sequence", kSequences, "", Presence::variadic}},
           .attributes = {{"body", AttributeDef::Required{}}},
           .decompose = decompose}};
}

}  // namespace treadle::ops
