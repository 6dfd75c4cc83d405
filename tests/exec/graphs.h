// Small graphs for tests, built by hand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/infer.h"

namespace treadle::testing {

/// Builds a graph node by node, and infers the types of each node's outputs when it is added.
class GraphBuilder {
 public:
  GraphBuilder() : graph_(std::make_unique<Graph>(std::make_shared<SymbolTable>())) { graph_->name = "test"; }

  Dim symbol(const std::string& name) { return graph_->symbols().symbol(name); }
  ValueId input(const std::string& name, DType dtype, SymbolicShape shape) {
    return graph_->add_input(name, Type::tensor(dtype, std::move(shape)));
  }
  ValueId constant(const std::string& name, Tensor tensor) { return graph_->add_constant(name, std::move(tensor)); }
  ValueId ints(const std::string& name, std::vector<int64_t> values) { return constant(name, Tensor::vector<int64_t>(values)); }
  ValueId node(const std::string& op, std::vector<ValueId> inputs, Attributes attributes = {}, const std::string& name = {},
               const std::string& domain = {}) {
    return nodes(op, std::move(inputs), 1, std::move(attributes), name, domain)[0];
  }
  std::vector<ValueId> nodes(const std::string& op, std::vector<ValueId> inputs, int num_outputs, Attributes attributes = {},
                             const std::string& name = {}, const std::string& domain = {}) {
    NodeSpec spec{.op_type = op,
                  .inputs = std::move(inputs),
                  .attributes = std::move(attributes),
                  .domain = domain,
                  .name = name,
                  .num_outputs = num_outputs};
    NodeId id = graph_->add_node(std::move(spec));
    graph_->node(id).sources = {graph_->node(id).name};
    infer_node(*graph_, id);
    return graph_->node(id).outputs;
  }
  void output(ValueId value, const std::string& name = {}) {
    graph_->outputs.push_back(value);
    graph_->output_names.push_back(name.empty() ? graph_->value(value).name : name);
  }
  Graph& graph() { return *graph_; }
  std::shared_ptr<Graph> finish() { return std::move(graph_); }

 private:
  std::unique_ptr<Graph> graph_;
};

}  // namespace treadle::testing
