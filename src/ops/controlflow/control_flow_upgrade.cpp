#include "ops/controlflow/control_flow_upgrade.h"

#include <fmt/format.h>

#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Returns a type without its axis 0, the batch.
Type without_batch(Type type) {
  if (type.shape && !type.shape->empty()) type.shape->erase(type.shape->begin());
  return type;
}

ValueId only_output(Graph& graph, NodeSpec spec) { return graph.node(graph.add_node(std::move(spec))).outputs[0]; }

ValueId ints(Graph& graph, std::vector<int64_t> values) { return graph.add_constant("ints", Tensor::vector<int64_t>(values)); }

}  // namespace

void batched_scan_to_nested(Graph& graph, NodeId id) {
  Node& old = graph.node(id);
  const int64_t num_scanned = old.attributes.get_int("num_scan_inputs");
  if (old.num_formal_inputs < 1 || num_scanned < 1 || num_scanned > old.num_formal_inputs - 1 || old.bodies.size() != 1)
    throw Error(ErrorCode::invalid_model, fmt::format("num_scan_inputs = {}, the node has {} inputs and {} bodies", num_scanned,
                                                      old.num_formal_inputs, old.bodies.size()));
  for (int64_t i = 1; i < old.num_formal_inputs; ++i)
    if (old.inputs[static_cast<size_t>(i)] == kNoValue) throw Error(ErrorCode::invalid_model, fmt::format("the input {} is missing", i));
  const auto num_states = static_cast<size_t>(old.num_formal_inputs - 1 - num_scanned);
  const bool has_lengths = old.has_input(0);

  // Builds the body of the outer Scan, which iterates over the batch. The inputs of this body are one sample's length, states and
  // sequences, and then the values that the old body captured.
  Body body = std::move(old.bodies[0]);
  old.bodies.clear();
  auto sample = std::make_unique<Graph>(graph.symbol_table());
  sample->name = body.graph->name + "_sample";
  sample->opsets = graph.opsets;
  std::vector<ValueId> outer_inputs, inner_inputs;
  ValueId length = kNoValue;
  for (size_t i = has_lengths ? 0 : 1; i < static_cast<size_t>(old.num_formal_inputs); ++i) {
    outer_inputs.push_back(old.inputs[i]);
    const ValueId value = sample->add_input(graph.value(old.inputs[i]).name, without_batch(graph.type(old.inputs[i])));
    if (i == 0)
      length = value;
    else
      inner_inputs.push_back(value);
  }
  ValueId padding = kNoValue;
  if (has_lengths) {
    length = only_output(*sample, {.op_type = "Reshape", .inputs = {length, ints(*sample, {1})}});
    const ValueId longest = only_output(
        *sample, {.op_type = "Shape", .inputs = {inner_inputs[num_states]}, .attributes = {{"start", int64_t{0}}, {"end", int64_t{1}}}});
    const ValueId missing = only_output(*sample, {.op_type = "Sub", .inputs = {longest, length}});
    padding = only_output(*sample, {.op_type = "Concat", .inputs = {ints(*sample, {0}), missing}, .attributes = {{"axis", int64_t{0}}}});
    for (size_t i = num_states; i < inner_inputs.size(); ++i)
      inner_inputs[i] =
          only_output(*sample, {.op_type = "Slice", .inputs = {inner_inputs[i], ints(*sample, {0}), length, ints(*sample, {0})}});
  }

  const size_t num_outputs = old.outputs.size();
  NodeSpec inner_spec{.op_type = "Scan", .inputs = inner_inputs, .attributes = {{"num_scan_inputs", num_scanned}}, .name = old.name};
  inner_spec.num_outputs = static_cast<int>(num_outputs);
  if (old.attributes.has("directions")) inner_spec.attributes.set("scan_input_directions", old.attributes.get_ints("directions"));
  const NodeId inner = sample->add_node(std::move(inner_spec));
  Body outer_body{"body", nullptr, {}};
  for (auto& [inside, position] : body.captures) {
    const ValueId captured = old.inputs[static_cast<size_t>(old.num_formal_inputs + position)];
    const ValueId passed = sample->add_input(graph.value(captured).name, graph.type(captured));
    outer_body.captures.emplace_back(passed, position);
    position = sample->add_capture(inner, passed);
  }
  sample->node(inner).bodies.push_back(std::move(body));
  for (size_t i = 0; i < num_outputs; ++i) {
    ValueId output = sample->node(inner).outputs[i];
    if (has_lengths && i >= num_states)
      output = only_output(*sample, {.op_type = "Pad", .inputs = {output, padding, kNoValue, ints(*sample, {0})}});
    sample->outputs.push_back(output);
  }

  // The outer Scan has no states: all its inputs are scanned, and all its outputs are stacked.
  NodeSpec outer_spec{.op_type = "Scan",
                      .inputs = outer_inputs,
                      .attributes = {{"num_scan_inputs", static_cast<int64_t>(outer_inputs.size())}},
                      .name = old.name};
  outer_spec.num_outputs = static_cast<int>(num_outputs);
  const NodeId outer = graph.add_node(std::move(outer_spec), id);
  const Node& replaced = graph.node(id);
  for (auto& [passed, position] : outer_body.captures)
    position = graph.add_capture(outer, replaced.inputs[static_cast<size_t>(replaced.num_formal_inputs + position)]);
  outer_body.graph = std::move(sample);
  graph.node(outer).bodies.push_back(std::move(outer_body));
  for (size_t i = 0; i < num_outputs; ++i)
    if (replaced.outputs[i] != kNoValue) graph.replace_uses(replaced.outputs[i], graph.node(outer).outputs[i]);
  graph.remove_node(id);
}

}  // namespace treadle::ops
