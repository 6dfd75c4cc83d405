// Helpers that build small graphs in code, and run them through the executor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exec/run/frame.h"
#include "graph/graph.h"
#include "graph/infer.h"
#include "tests/exec/host_program.h"

namespace treadle::testing {

class GraphBuilder {
 public:
  explicit GraphBuilder(std::shared_ptr<SymbolTable> symbols = std::make_shared<SymbolTable>())
      : graph_(std::make_unique<Graph>(std::move(symbols))) {
    graph_->name = "g";
  }

  Graph& graph() { return *graph_; }
  Dim symbol(std::string_view name) { return graph_->symbols().symbol(name); }

  ValueId input(std::string_view name, SymbolicShape shape, DType dtype = DType::float32) {
    return graph_->add_input(name, Type::tensor(dtype, std::move(shape)));
  }
  template <typename T>
  ValueId constant(std::string_view name, const Shape& shape, const std::vector<T>& values) {
    return graph_->add_constant(name, Tensor::of<T>(shape, std::span<const T>(values)));
  }
  ValueId floats(std::string_view name, const std::vector<float>& values) {
    return constant<float>(name, Shape{static_cast<int64_t>(values.size())}, values);
  }
  ValueId ints(std::string_view name, const std::vector<int64_t>& values) {
    return constant<int64_t>(name, Shape{static_cast<int64_t>(values.size())}, values);
  }
  ValueId scalar(std::string_view name, float value) { return constant<float>(name, Shape{}, {value}); }
  /// Returns a constant with random values, uniform in [-1, 1).
  ValueId weights(std::string_view name, const Shape& shape) { return graph_->add_constant(name, random_tensor(shape, 7)); }

  /// Adds a node and infers its types. The node and its first output are called `name`, as if read from a model's file.
  std::vector<ValueId> node(std::string_view name, std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {},
                            int num_outputs = 1, std::string_view domain = "") {
    NodeSpec spec{
        .op_type = std::string(op_type), .inputs = std::move(inputs), .attributes = std::move(attributes), .domain = std::string(domain)};
    spec.name = std::string(name) + "_node";
    spec.num_outputs = num_outputs;
    for (int i = 0; i < num_outputs; ++i) spec.output_names.push_back(std::string(name) + (i ? std::to_string(i) : ""));
    NodeId id = graph_->add_node(std::move(spec));
    graph_->node(id).sources = {std::string(name)};
    infer_node(*graph_, id);
    last_ = id;
    return graph_->node(id).outputs;
  }
  ValueId op(std::string_view name, std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return node(name, op_type, std::move(inputs), std::move(attributes))[0];
  }
  NodeId last_node() const { return last_; }

  /// Gives the last node a body. Each capture is a pair: input of the body, value of this graph.
  void body(std::string_view attribute, std::unique_ptr<Graph> body, const std::vector<std::pair<ValueId, ValueId>>& captures = {}) {
    Body made{std::string(attribute), std::move(body), {}};
    for (auto [inside, outside] : captures) made.captures.emplace_back(inside, graph_->add_capture(last_, outside));
    graph_->node(last_).bodies.push_back(std::move(made));
  }

  void output(ValueId id, std::string_view name = "") {
    graph_->outputs.push_back(id);
    graph_->output_names.push_back(name.empty() ? graph_->value(id).name : std::string(name));
  }
  std::unique_ptr<Graph> take() { return std::move(graph_); }

  static Tensor random_tensor(const Shape& shape, uint32_t seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    Tensor tensor(DType::float32, shape);
    for (float& x : tensor.span<float>()) x = uniform(generator);
    return tensor;
  }

 private:
  std::unique_ptr<Graph> graph_;
  NodeId last_ = kNoNode;
};

/// Makes random feeds for a graph's inputs. Symbols get the extents 3, 4, 5 … in order of appearance, unless `extents` has them.
inline std::vector<Datum> random_feeds(const Graph& graph, std::map<std::string, int64_t> extents = {}) {
  std::vector<Datum> feeds;
  uint32_t seed = 11;
  for (ValueId input : graph.inputs) {
    const Type& type = graph.type(input);
    Shape shape;
    for (const Dim& dim : *type.shape) {
      if (dim.is_const())
        shape.push_back(dim.value());
      else
        shape.push_back(extents.try_emplace(to_string(dim), 3 + static_cast<int64_t>(extents.size())).first->second);
    }
    Tensor random = GraphBuilder::random_tensor(shape, ++seed);
    if (type.dtype == DType::float32) {
      feeds.emplace_back(random);
      continue;
    }
    Tensor tensor(type.dtype, shape);
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      float x = random.data<float>()[i] * 10;
      switch (type.dtype) {
        case DType::int64: tensor.data<int64_t>()[i] = static_cast<int64_t>(x); break;
        case DType::int32: tensor.data<int32_t>()[i] = static_cast<int32_t>(x); break;
        case DType::float64: tensor.data<double>()[i] = x; break;
        case DType::boolean: tensor.data<bool>()[i] = x > 0; break;
        default: tensor.raw()[i] = static_cast<std::byte>(x > 0); break;
      }
    }
    feeds.emplace_back(tensor);
  }
  return feeds;
}

/// Runs a copy of the graph, and returns its outputs.
inline std::vector<Datum> run_graph(const Graph& graph, const std::vector<Datum>& feeds) {
  std::shared_ptr<const Graph> copy = graph.clone();
  testing::HostProgram program(copy);
  std::vector<Datum> outputs(copy->outputs.size());
  program.run(feeds, outputs, {});
  return outputs;
}

}  // namespace treadle::testing
