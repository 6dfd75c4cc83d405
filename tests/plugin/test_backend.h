// A backend that computes Add, Mul and Relu in float32 with a simple interpreter, using only treadle/plugin.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "treadle/plugin.h"

namespace treadle::testing {

struct TestBackend {
  std::atomic<int> compiled{0}, refused{0}, released{0}, runs{0};
  size_t refuse_above = SIZE_MAX;  ///< number of nodes; larger subgraphs are refused with a text
  bool fail_runs = false;
  std::vector<std::string> taken;  ///< op types that `takes` has been asked about and has accepted, in order

  struct Step {
    std::string op;
    std::vector<std::string> inputs;
    std::string output;
  };
  struct Plan {
    std::vector<Step> steps;
    std::vector<std::string> inputs, outputs;
    std::map<std::string, std::vector<float>> constants;
  };

  static int takes(void* user, const treadle_host* host, size_t, const treadle_node* node) {
    treadle_value_type type;
    host->node_output_type(node, 0, &type);
    if (type.dtype != TREADLE_FLOAT32) return 0;
    static_cast<TestBackend*>(user)->taken.emplace_back(host->node_op_type(node));
    return 1;
  }

  static void* compile(void* user, const treadle_host* host, size_t, const treadle_subgraph* subgraph) {
    auto& self = *static_cast<TestBackend*>(user);
    if (host->subgraph_num_nodes(subgraph) > self.refuse_above) {
      ++self.refused;
      host->fail("too large for the test backend");
      return nullptr;
    }
    auto* plan = new Plan();
    for (size_t i = 0; i < host->subgraph_num_inputs(subgraph); ++i) plan->inputs.emplace_back(host->subgraph_input(subgraph, i));
    for (size_t i = 0; i < host->subgraph_num_outputs(subgraph); ++i) plan->outputs.emplace_back(host->subgraph_output(subgraph, i));
    for (size_t i = 0; i < host->subgraph_num_nodes(subgraph); ++i) {
      const treadle_node* node = host->subgraph_node(subgraph, i);
      Step step{host->node_op_type(node), {}, host->node_output(node, 0)};
      for (size_t k = 0; k < host->node_num_inputs(node); ++k) {
        step.inputs.emplace_back(host->node_input(node, k));
        treadle_tensor_view view;
        if (!host->node_input_constant(node, k, &view)) continue;
        size_t count = 1;
        for (int axis = 0; axis < view.rank; ++axis) count *= static_cast<size_t>(view.dims[axis]);
        const auto* data = static_cast<const float*>(view.data);
        plan->constants[step.inputs.back()] = {data, data + count};
      }
      plan->steps.push_back(std::move(step));
    }
    ++self.compiled;
    return plan;
  }

  // Runs a subgraph whose operands all have the same number of elements, or one element.
  static int run(void* user, void* compiled, const treadle_host* host, treadle_call* call) {
    auto& self = *static_cast<TestBackend*>(user);
    ++self.runs;
    if (self.fail_runs) {
      host->fail("the test backend was told to fail");
      return 0;
    }
    const auto& plan = *static_cast<Plan*>(compiled);
    std::map<std::string, std::vector<float>> values = plan.constants;
    std::vector<int64_t> dims;
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      treadle_tensor_view view;
      if (!host->call_input(call, i, &view)) return 0;
      size_t count = 1;
      for (int axis = 0; axis < view.rank; ++axis) count *= static_cast<size_t>(view.dims[axis]);
      if (view.rank > static_cast<int>(dims.size())) dims.assign(view.dims, view.dims + view.rank);
      const auto* data = static_cast<const float*>(view.data);
      values[plan.inputs[i]] = {data, data + count};
    }
    for (const Step& step : plan.steps) {
      std::vector<float> a = values.at(step.inputs[0]);
      if (step.op == "Relu") {
        for (float& x : a) x = std::max(x, 0.0f);
      } else {
        std::vector<float> b = values.at(step.inputs[1]);
        const size_t count = std::max(a.size(), b.size());
        a.resize(count, a[0]);
        b.resize(count, b[0]);
        for (size_t i = 0; i < count; ++i) a[i] = step.op == "Add" ? a[i] + b[i] : a[i] * b[i];
      }
      values[step.output] = std::move(a);
    }
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const std::vector<float>& value = values.at(plan.outputs[i]);
      void* to = host->call_output(call, i, TREADLE_FLOAT32, dims.data(), dims.size());
      if (!to) return 0;
      std::memcpy(to, value.data(), value.size() * sizeof(float));
    }
    return 1;
  }

  static void release(void* user, void* compiled) {
    ++static_cast<TestBackend*>(user)->released;
    delete static_cast<Plan*>(compiled);
  }

  /// Registers the backend under `name`, with two properties: "elementwise" (on by default; Add, Mul, Relu) and "multiply" (off; Mul, at
  /// least two nodes).
  /// @param device  the device of both backends; null means the host
  void register_as(const char* name, const char* device = nullptr) {
    static const char* const elementwise[] = {"Add", "Mul", "Relu", nullptr};
    static const char* const multiply[] = {"Mul", nullptr};
    const treadle_backend_property properties[] = {
        {.name = "elementwise", .enabled = 1, .inference_only = 1, .op_types = elementwise, .min_nodes = 1, .device = device},
        {.name = "multiply", .enabled = 0, .inference_only = 0, .op_types = multiply, .min_nodes = 2, .device = device}};
    const treadle_backend backend{.size = sizeof(treadle_backend),
                                  .name = name,
                                  .user = this,
                                  .properties = properties,
                                  .num_properties = 2,
                                  .takes = takes,
                                  .compile = compile,
                                  .run = run,
                                  .release = release,
                                  .size_bytes = nullptr};
    treadle_status* status = treadle_register_backend(&backend);
    treadle_status_release(status);
  }
};

}  // namespace treadle::testing
