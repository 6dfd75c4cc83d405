// Functions for both kinds of training graphs: those that are built from a model, and those that are read from training artifacts.
#include <algorithm>

#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "train/graph/training_graph.h"

namespace treadle::train {

NodeId append_node(Graph& graph, NodeSpec spec) {
  spec.name = graph.unique_name(spec.name);
  const NodeId id = graph.add_node(std::move(spec));
  infer_node(graph, id);
  return id;
}

ValueId appended(Graph& graph, NodeSpec spec) { return graph.node(append_node(graph, std::move(spec))).outputs[0]; }

void set_outputs(Graph& graph, const Outputs& outputs, std::span<const ValueId> read) {
  graph.outputs.clear();
  graph.output_names.clear();
  graph.declared_outputs.clear();
  for (const auto& [name, id] : outputs) {
    graph.outputs.push_back(id);
    graph.output_names.push_back(name);
  }
  remove_dead_nodes(graph);
  std::erase_if(graph.inputs, [&](ValueId input) {
    return graph.value(input).uses.empty() && !graph.is_output(input) && std::find(read.begin(), read.end(), input) == read.end();
  });
}

}  // namespace treadle::train
