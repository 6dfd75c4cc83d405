// Checks gradient rules against central finite differences in float64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "autodiff/gradient.h"
#include "exec/run/frame.h"
#include "graph/graph.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "tests/exec/host_program.h"

namespace treadle::testing {

/// Returns float64 values, uniform in [low, high).
inline Tensor doubles(const Shape& shape, uint32_t seed, double low = -1, double high = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  Tensor tensor(DType::float64, shape);
  for (double& x : tensor.span<double>()) x = uniform(generator);
  return tensor;
}
inline Tensor indices(const Shape& shape, std::vector<int64_t> values) { return Tensor::of<int64_t>(shape, values); }

struct GradientCase {
  std::string op_type;
  std::vector<Tensor> inputs;  // float64 inputs are differentiated, others are constants; an undefined tensor is an absent operand
  Attributes attributes = {};
  int num_outputs = 1;
  std::vector<size_t> constants = {};  // indices of float64 inputs that are constants as well
  bool symbolic_batch = false;         // axis 0 of input 0 is a symbol
  bool symbolic = false;               // every axis of every differentiated input is a symbol of its own
  std::string domain = "";
};

struct Differentiated {
  std::shared_ptr<Graph> graph;
  std::vector<Datum> feeds;
  std::vector<size_t> outputs;  // indices of the forward graph's float64 outputs among the graph's outputs
  std::vector<ValueId> xs;
};

/// Runs the graph. The gradients of sum(y * r) over the float64 outputs, with random r, must equal finite differences.
inline void check_gradients(const GradientCase& test, double tolerance = 2e-7, double step = 1e-5) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  std::vector<ValueId> inputs, xs, ys, rs;
  std::vector<Datum> feeds;
  std::vector<size_t> differentiated;  // indices of the feeds whose gradients are checked
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    const Tensor& input = test.inputs[i];
    const std::string name = "x" + std::to_string(i);
    const bool constant = std::find(test.constants.begin(), test.constants.end(), i) != test.constants.end();
    if (!input.defined()) {
      inputs.push_back(kNoValue);
    } else if (input.dtype() != DType::float64 || constant) {
      inputs.push_back(graph->add_constant(name, input));
    } else {
      Type type = Type::tensor(input.dtype(), input.shape());
      if (test.symbolic_batch && i == 0) (*type.shape)[0] = graph->symbols().symbol("N");
      for (size_t axis = 0; test.symbolic && axis < type.shape->size(); ++axis)
        (*type.shape)[axis] = graph->symbols().symbol(name + "_" + std::to_string(axis));
      inputs.push_back(graph->add_input(name, type));
      xs.push_back(inputs.back());
      differentiated.push_back(feeds.size());
      feeds.emplace_back(input.clone());
    }
  }
  const NodeId node = graph->add_node(
      {.op_type = test.op_type, .inputs = inputs, .attributes = test.attributes, .domain = test.domain, .num_outputs = test.num_outputs});
  for (ValueId output : graph->node(node).outputs)
    graph->outputs.push_back(output), graph->output_names.push_back(graph->value(output).name);
  onnx::upgrade(*graph);

  auto run = [&](const Graph& source) {
    std::shared_ptr<const Graph> copy = source.clone();
    std::vector<Datum> outputs(copy->outputs.size());
    testing::HostProgram(copy).run(feeds, outputs, {.run_id = 3});
    return outputs;
  };
  // The weights r are inputs, after the differentiated ones.
  const std::unique_ptr<Graph> forward = graph->clone();
  const std::vector<Datum> values = run(*forward);
  std::vector<Tensor> weights(values.size());
  std::vector<Datum> weight_feeds;
  for (size_t k = 0; k < values.size(); ++k) {
    if (values[k].tensor().dtype() != DType::float64) continue;
    weights[k] = doubles(values[k].tensor().shape(), 99 + static_cast<uint32_t>(k), 0.5, 1.5);
    ys.push_back(graph->outputs[k]);
    rs.push_back(graph->add_input("r" + std::to_string(k), graph->type(graph->outputs[k])));
    weight_feeds.emplace_back(weights[k]);
  }
  const std::vector<ValueId> grads = autodiff::add_gradients(*graph, ys, rs, xs);
  verify(*graph);
  graph->outputs.clear();
  graph->output_names.clear();
  for (size_t i = 0; i < xs.size(); ++i) {
    ASSERT_NE(grads[i], kNoValue) << test.op_type << " has no gradient for input " << i;
    graph->outputs.push_back(grads[i]);
    graph->output_names.push_back("dx" + std::to_string(i));
  }
  const std::vector<Datum> forward_feeds = feeds;
  feeds.insert(feeds.end(), weight_feeds.begin(), weight_feeds.end());
  const std::vector<Datum> results = run(*graph);
  feeds = forward_feeds;

  auto objective = [&] {
    double sum = 0;
    const std::vector<Datum> outputs = run(*forward);
    for (size_t k = 0; k < outputs.size(); ++k)
      for (int64_t i = 0; weights[k].defined() && i < weights[k].num_elements(); ++i)
        sum += outputs[k].tensor().data<double>()[i] * weights[k].data<double>()[i];
    return sum;
  };
  for (size_t k = 0; k < differentiated.size(); ++k) {
    const Tensor& x = feeds[differentiated[k]].tensor();
    const Tensor& gradient = results[k].tensor();
    ASSERT_EQ(gradient.shape(), x.shape()) << test.op_type;
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      const double center = x.data<double>()[i];
      x.data<double>()[i] = center + step;
      const double above = objective();
      x.data<double>()[i] = center - step;
      const double below = objective();
      x.data<double>()[i] = center;
      const double expected = (above - below) / (2 * step), got = gradient.data<double>()[i];
      ASSERT_NEAR(got, expected, tolerance * (1 + std::fabs(expected))) << test.op_type << ", input " << k << ", element " << i;
    }
  }
}

}  // namespace treadle::testing
