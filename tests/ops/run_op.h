// Runs one node of any opset. The node is upgraded, inferred, lowered and executed like a node of a model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/run/frame.h"
#include "graph/graph.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"

namespace treadle::testing {

struct OpCase {
  std::string op_type;
  int opset = 28;
  std::vector<Tensor> inputs;  // an undefined tensor stands for an absent operand
  Attributes attributes = {};
  int num_outputs = 1;
  std::string domain = "";
};

inline std::vector<Tensor> run_op(const OpCase& test) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  std::vector<ValueId> inputs;
  std::vector<Datum> feeds;
  for (const Tensor& input : test.inputs) {
    if (!input.defined()) {
      inputs.push_back(kNoValue);
      continue;
    }
    inputs.push_back(graph->add_input("x" + std::to_string(inputs.size()), Type::tensor(input.dtype(), input.shape())));
    feeds.emplace_back(input);
  }
  NodeId id = graph->add_node(
      {.op_type = test.op_type, .inputs = inputs, .attributes = test.attributes, .domain = test.domain, .num_outputs = test.num_outputs});
  graph->node(id).version = test.opset;
  for (ValueId output : graph->node(id).outputs) {
    graph->outputs.push_back(output);
    graph->output_names.push_back(graph->value(output).name);
  }
  onnx::upgrade(*graph);
  passes::canonicalize(*graph);
  std::vector<Datum> outputs(graph->outputs.size());
  testing::HostProgram(graph).run(feeds, outputs, {});
  std::vector<Tensor> tensors;
  for (const Datum& output : outputs) tensors.push_back(output.tensor());
  return tensors;
}

template <typename T>
Tensor tensor(const Shape& shape, std::vector<T> values) {
  return Tensor::of<T>(shape, std::span<const T>(values));
}
template <>
inline Tensor tensor(const Shape& shape, std::vector<bool> values) {
  Tensor result(DType::boolean, shape);
  for (size_t i = 0; i < values.size(); ++i) result.data<bool>()[i] = values[i];
  return result;
}
inline Tensor floats(const Shape& shape, std::vector<float> values) { return tensor<float>(shape, std::move(values)); }

template <typename T>
std::vector<T> values(const Tensor& tensor) {
  return std::vector<T>(tensor.data<T>(), tensor.data<T>() + tensor.num_elements());
}

}  // namespace treadle::testing
