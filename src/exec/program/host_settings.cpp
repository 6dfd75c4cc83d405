#include "exec/program/host_settings.h"

#include <algorithm>
#include <vector>

namespace treadle::exec {

bool reads_only_shapes(const OpDef& op) { return op.domain.empty() && (op.name == "Shape" || op.name == "Size"); }

namespace {

bool is_setting(const OpDef& op, size_t input) {
  return std::find(op.value_inputs.begin(), op.value_inputs.end(), static_cast<int>(input)) != op.value_inputs.end();
}

/// Returns the nodes whose outputs are read only as settings (shapes, axes and the like) or by other nodes of this kind. Last nodes first.
std::vector<const Node*> read_as_settings(const Graph& graph) {
  // is_wanted: read as a setting; is_computed_with: read in any other way.
  std::vector<bool> is_wanted(graph.num_values(), false), is_computed_with(graph.num_values(), false);
  for (const ValueId output : graph.outputs) is_computed_with[index_of(output)] = true;
  std::vector<NodeId> order;
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) order.push_back(id);
  std::vector<const Node*> found;
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const Node& node = graph.node(*id);
    const auto is_only_setting = [&](ValueId output) {
      return output == kNoValue || (is_wanted[index_of(output)] && !is_computed_with[index_of(output)]);
    };
    const bool has_bodies = !node.op || node.op->control_flow != ControlFlow::none || node.op->barrier;
    const bool makes_settings = !has_bodies && std::all_of(node.outputs.begin(), node.outputs.end(), is_only_setting);
    if (makes_settings) found.push_back(&node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue || (node.op && reads_only_shapes(*node.op))) continue;
      const bool as_setting = makes_settings || (node.op && is_setting(*node.op, i));
      (as_setting ? is_wanted : is_computed_with)[index_of(node.inputs[i])] = true;
    }
  }
  return found;
}

}  // namespace

std::set<const Node*> nodes_of_settings(const Graph& graph) {
  std::vector<bool> on_host(graph.num_values(), false);
  for (const ValueId input : graph.inputs) on_host[index_of(input)] = graph.type(input).has_rank() && graph.type(input).rank() <= 1;
  std::set<const Node*> found;
  const std::vector<const Node*> candidates = read_as_settings(graph);
  for (auto node = candidates.rbegin(); node != candidates.rend(); ++node) {
    const auto is_there = [&](ValueId input) { return input == kNoValue || on_host[index_of(input)] || graph.value(input).is_constant(); };
    const bool computes_there = std::all_of((*node)->inputs.begin(), (*node)->inputs.end(), is_there);
    if (!computes_there && !reads_only_shapes(*(*node)->op)) continue;
    found.insert(*node);
    for (const ValueId output : (*node)->outputs)
      if (output != kNoValue) on_host[index_of(output)] = true;
  }
  return found;
}

}  // namespace treadle::exec
