// Runs subgraphs of convolutional networks with oneDNN, in float32: Conv, MaxPool, AveragePool, GlobalAveragePool, Relu, Add, and Gemm and
// MatMul by constant weights. The first run with given shapes makes a list of oneDNN's primitives from the subgraph. Between primitives,
// tensors keep the layouts that oneDNN prefers, so that a chain of convolutions reorders data only at its ends.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "treadle/plugin.h"

namespace {

using dnnl::memory;
using Dims = memory::dims;

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::format_tag plain(size_t rank) {
  constexpr memory::format_tag tags[] = {memory::format_tag::undef, memory::format_tag::a,    memory::format_tag::ab,
                                         memory::format_tag::abc,   memory::format_tag::abcd, memory::format_tag::abcde};
  return rank < std::size(tags) ? tags[rank] : memory::format_tag::undef;
}

memory::desc plain_desc(const Dims& dims) { return {dims, memory::data_type::f32, plain(dims.size())}; }
memory::desc any_desc(const Dims& dims) { return {dims, memory::data_type::f32, memory::format_tag::any}; }

// A copy of a node's content: the compiled subgraph lives longer than the graph.
struct Step {
  std::string op;
  std::vector<std::string> inputs;
  std::string output;
  Dims kernel, strides, dilations, pads;
  int64_t group = 1, count_include_pad = 0, trans_a = 0, trans_b = 0;
};

struct Constant {
  Dims dims;
  std::vector<float> data;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<std::string> inputs, outputs;
  std::unordered_map<std::string, Constant> constants;

  // The primitives for certain shapes of the inputs, in order, and the memories that they read and write. Only one run at a time uses it.
  struct Executable {
    std::vector<std::pair<dnnl::primitive, std::unordered_map<int, memory>>> primitives;
    std::vector<memory> inputs, outputs;  // memories in plain layouts; each run sets their addresses
  };
  std::mutex mutex;
  std::map<std::vector<Dims>, std::vector<std::unique_ptr<Executable>>> idle;
};

bool is_constant(const treadle_host* host, const treadle_node* node, size_t index) {
  treadle_tensor_view view;
  return host->node_input_constant(node, index, &view) != 0;
}

Dims ints(const treadle_host* host, const treadle_node* node, const char* name, size_t count, int64_t otherwise) {
  const int64_t* values = nullptr;
  size_t length = 0;
  if (host->node_attribute_ints(node, name, &values, &length) && length == count) return Dims(values, values + length);
  return Dims(count, otherwise);
}

bool has_text(const treadle_host* host, const treadle_node* node, const char* name, const char* expected) {
  const char* text = nullptr;
  size_t length = 0;
  return !host->node_attribute_string(node, name, &text, &length) || std::string(text, length) == expected;
}

int64_t integer(const treadle_host* host, const treadle_node* node, const char* name, int64_t otherwise) {
  int64_t value = otherwise;
  host->node_attribute_int(node, name, &value);
  return value;
}

float number(const treadle_host* host, const treadle_node* node, const char* name, float otherwise) {
  float value = otherwise;
  host->node_attribute_float(node, name, &value);
  return value;
}

int rank_of(const treadle_host* host, const treadle_node* node, size_t index) {
  treadle_value_type type;
  host->node_input_type(node, index, &type);
  return type.dtype == TREADLE_FLOAT32 ? type.rank : -1;
}

bool same_known_shape(const treadle_host* host, const treadle_node* node) {
  treadle_value_type a, b;
  host->node_input_type(node, 0, &a);
  host->node_input_type(node, 1, &b);
  if (a.rank != b.rank || a.rank < 1) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.dims[axis] != b.dims[axis] || a.dims[axis] < 0) return false;
  return true;
}

int takes(void*, const treadle_host* host, size_t, const treadle_node* node) {
  const std::string op = host->node_op_type(node);
  const int rank = rank_of(host, node, 0);
  if (rank < 1 || rank > 5) return 0;
  treadle_value_type output;
  host->node_output_type(node, 0, &output);
  if (output.dtype != TREADLE_FLOAT32 || host->node_num_outputs(node) != 1) return 0;
  if (op == "Relu") return 1;
  if (op == "Add") return rank_of(host, node, 1) == rank && same_known_shape(host, node) ? 1 : 0;
  if (op == "Conv") {
    const bool bias = host->node_num_inputs(node) < 3 || !*host->node_input(node, 2) || is_constant(host, node, 2);
    return rank == 4 && is_constant(host, node, 1) && bias && has_text(host, node, "auto_pad", "NOTSET") ? 1 : 0;
  }
  if (op == "MaxPool" || op == "AveragePool")
    return rank == 4 && has_text(host, node, "auto_pad", "NOTSET") && integer(host, node, "ceil_mode", 0) == 0 ? 1 : 0;
  if (op == "GlobalAveragePool") return rank == 4 ? 1 : 0;
  if (op == "MatMul") return rank == 2 && is_constant(host, node, 1) && rank_of(host, node, 1) == 2 ? 1 : 0;
  if (op == "Gemm") {
    const bool scaled = number(host, node, "alpha", 1) != 1 || number(host, node, "beta", 1) != 1;
    const bool bias =
        host->node_num_inputs(node) < 3 || !*host->node_input(node, 2) || (is_constant(host, node, 2) && rank_of(host, node, 2) == 1);
    return rank == 2 && !scaled && bias && is_constant(host, node, 1) && integer(host, node, "transA", 0) == 0 ? 1 : 0;
  }
  return 0;
}

void* compile(void*, const treadle_host* host, size_t, const treadle_subgraph* subgraph) {
  auto plan = std::make_unique<Plan>();
  for (size_t i = 0; i < host->subgraph_num_inputs(subgraph); ++i) plan->inputs.emplace_back(host->subgraph_input(subgraph, i));
  for (size_t i = 0; i < host->subgraph_num_outputs(subgraph); ++i) plan->outputs.emplace_back(host->subgraph_output(subgraph, i));
  for (size_t i = 0; i < host->subgraph_num_nodes(subgraph); ++i) {
    const treadle_node* node = host->subgraph_node(subgraph, i);
    Step step{.op = host->node_op_type(node),
              .inputs = {},
              .output = host->node_output(node, 0),
              .kernel = {},
              .strides = {},
              .dilations = {},
              .pads = {}};
    for (size_t k = 0; k < host->node_num_inputs(node); ++k) {
      step.inputs.emplace_back(host->node_input(node, k));
      treadle_tensor_view view;
      if (!host->node_input_constant(node, k, &view)) continue;
      Constant& constant = plan->constants[step.inputs.back()];
      constant.dims.assign(view.dims, view.dims + view.rank);
      size_t count = 1;
      for (int64_t dim : constant.dims) count *= static_cast<size_t>(dim);
      constant.data.assign(static_cast<const float*>(view.data), static_cast<const float*>(view.data) + count);
    }
    step.kernel = ints(host, node, "kernel_shape", 2, 0);
    step.strides = ints(host, node, "strides", 2, 1);
    step.dilations = ints(host, node, "dilations", 2, 1);
    step.pads = ints(host, node, "pads", 4, 0);
    step.group = integer(host, node, "group", 1);
    step.count_include_pad = integer(host, node, "count_include_pad", 0);
    step.trans_b = integer(host, node, "transB", 0);
    plan->steps.push_back(std::move(step));
  }
  return plan.release();
}

/// Makes the primitives that execute a plan with the input shapes of a run.
class Maker {
 public:
  explicit Maker(Plan& plan) : plan_(plan), made_(std::make_unique<Plan::Executable>()) {}

  std::unique_ptr<Plan::Executable> make(const std::vector<Dims>& shapes) {
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      memory input(plain_desc(shapes[i]), engine(), nullptr);
      made_->inputs.push_back(input);
      values_.insert_or_assign(plan_.inputs[i], input);
    }
    for (const Step& step : plan_.steps) values_.insert_or_assign(step.output, make_step(step));
    for (const std::string& name : plan_.outputs) {
      const memory& value = values_.at(name);
      memory output(plain_desc(value.get_desc().dims()), engine(), nullptr);
      add(dnnl::reorder(value, output), {{DNNL_ARG_FROM, value}, {DNNL_ARG_TO, output}});
      made_->outputs.push_back(output);
    }
    return std::move(made_);
  }

 private:
  void add(dnnl::primitive primitive, std::unordered_map<int, memory> arguments) {
    made_->primitives.emplace_back(std::move(primitive), std::move(arguments));
  }

  memory value_of(const std::string& name) {
    auto found = values_.find(name);
    if (found != values_.end()) return found->second;
    Constant& constant = plan_.constants.at(name);
    return memory(plain_desc(constant.dims), engine(), constant.data.data());
  }

  // Returns the value in the wanted layout. If `now` (for weights), it is reordered at once; otherwise, each run executes a reorder
  // primitive.
  memory in_layout(memory value, const memory::desc& wanted, bool now = false) {
    if (value.get_desc() == wanted) return value;
    memory result(wanted, engine());
    dnnl::reorder reorder(value, result);
    if (now) {
      dnnl::stream stream(engine());
      reorder.execute(stream, value, result);
      stream.wait();
    } else {
      add(reorder, {{DNNL_ARG_FROM, value}, {DNNL_ARG_TO, result}});
    }
    return result;
  }

  memory make_step(const Step& step) {
    if (step.op == "Conv") return make_conv(step);
    if (step.op == "MaxPool" || step.op == "AveragePool" || step.op == "GlobalAveragePool") return make_pool(step);
    if (step.op == "Relu") return make_relu(step);
    if (step.op == "Add") return make_add(step);
    return make_product(step);
  }

  memory make_conv(const Step& step) {
    const memory x = value_of(step.inputs[0]);
    const Constant& w = plan_.constants.at(step.inputs[1]);
    const Dims in = x.get_desc().dims();
    Dims dilations = step.dilations, out{in[0], w.dims[0], 0, 0}, weights = w.dims;
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t reach = (w.dims[axis + 2] - 1) * step.dilations[axis] + 1;
      out[axis + 2] = (in[axis + 2] + step.pads[axis] + step.pads[axis + 2] - reach) / step.strides[axis] + 1;
      --dilations[axis];  // a dilation of 1 in ONNX is 0 in oneDNN, which counts skipped elements
    }
    if (step.group > 1) weights = {step.group, w.dims[0] / step.group, w.dims[1], w.dims[2], w.dims[3]};
    const bool bias = step.inputs.size() > 2 && !step.inputs[2].empty();
    const Dims begin(step.pads.begin(), step.pads.begin() + 2), end(step.pads.begin() + 2, step.pads.end());
    using Forward = dnnl::convolution_forward;
    const auto kind = dnnl::prop_kind::forward_inference;
    const auto algorithm = dnnl::algorithm::convolution_auto;
    const Forward::desc desc =
        bias ? Forward::desc(kind, algorithm, any_desc(in), any_desc(weights), any_desc({w.dims[0]}), any_desc(out), step.strides,
                             dilations, begin, end)
             : Forward::desc(kind, algorithm, any_desc(in), any_desc(weights), any_desc(out), step.strides, dilations, begin, end);
    const Forward::primitive_desc primitive(desc, engine());
    const memory plain_weights(plain_desc(weights), engine(), const_cast<float*>(w.data.data()));
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, in_layout(x, primitive.src_desc())},
                                              {DNNL_ARG_WEIGHTS, in_layout(plain_weights, primitive.weights_desc(), true)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, in_layout(value_of(step.inputs[2]), primitive.bias_desc(), true));
    memory y(primitive.dst_desc(), engine());
    arguments.emplace(DNNL_ARG_DST, y);
    add(Forward(primitive), std::move(arguments));
    return y;
  }

  memory make_pool(const Step& step) {
    const memory x = value_of(step.inputs[0]);
    const Dims in = x.get_desc().dims();
    const bool global = step.op == "GlobalAveragePool";
    const Dims kernel = global ? Dims{in[2], in[3]} : step.kernel;
    Dims out{in[0], in[1], 0, 0}, dilations = step.dilations;
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t reach = (kernel[axis] - 1) * step.dilations[axis] + 1;
      out[axis + 2] = (in[axis + 2] + step.pads[axis] + step.pads[axis + 2] - reach) / step.strides[axis] + 1;
      --dilations[axis];
    }
    const auto algorithm = step.op == "MaxPool"                     ? dnnl::algorithm::pooling_max
                           : step.count_include_pad != 0 && !global ? dnnl::algorithm::pooling_avg_include_padding
                                                                    : dnnl::algorithm::pooling_avg_exclude_padding;
    const Dims begin(step.pads.begin(), step.pads.begin() + 2), end(step.pads.begin() + 2, step.pads.end());
    using Forward = dnnl::pooling_v2_forward;
    const Forward::desc desc(dnnl::prop_kind::forward_inference, algorithm, x.get_desc(), any_desc(out), step.strides, kernel, dilations,
                             begin, end);
    const Forward::primitive_desc primitive(desc, engine());
    memory y(primitive.dst_desc(), engine());
    add(Forward(primitive), {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}});
    return y;
  }

  memory make_relu(const Step& step) {
    const memory x = value_of(step.inputs[0]);
    using Forward = dnnl::eltwise_forward;
    const Forward::desc desc(dnnl::prop_kind::forward_inference, dnnl::algorithm::eltwise_relu, x.get_desc(), 0.0f, 0.0f);
    memory y(x.get_desc(), engine());
    add(Forward(Forward::primitive_desc(desc, engine())), {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}});
    return y;
  }

  memory make_add(const Step& step) {
    const memory a = value_of(step.inputs[0]);
    const memory b = in_layout(value_of(step.inputs[1]), a.get_desc());
    using Binary = dnnl::binary;
    const Binary::desc desc(dnnl::algorithm::binary_add, a.get_desc(), b.get_desc(), a.get_desc());
    memory y(a.get_desc(), engine());
    add(Binary(Binary::primitive_desc(desc, engine())), {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, y}});
    return y;
  }

  memory make_product(const Step& step) {
    const memory x = value_of(step.inputs[0]);
    const Constant& w = plan_.constants.at(step.inputs[1]);
    const Dims in = x.get_desc().dims();
    const Dims weights = step.trans_b ? Dims{w.dims[1], w.dims[0]} : w.dims;  // always [K, N], even if the stored weights are [N, K]
    const Dims out{in[0], weights[1]};
    const memory::desc given(weights, memory::data_type::f32, step.trans_b ? memory::format_tag::ba : memory::format_tag::ab);
    const bool bias = step.inputs.size() > 2 && !step.inputs[2].empty();
    using Product = dnnl::matmul;
    const Dims row{1, weights[1]};
    const Product::desc desc = bias ? Product::desc(any_desc(in), any_desc(weights), plain_desc(row), any_desc(out))
                                    : Product::desc(any_desc(in), any_desc(weights), any_desc(out));
    const Product::primitive_desc primitive(desc, engine());
    const memory plain_weights(given, engine(), const_cast<float*>(w.data.data()));
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, in_layout(x, primitive.src_desc())},
                                              {DNNL_ARG_WEIGHTS, in_layout(plain_weights, primitive.weights_desc(), true)}};
    if (bias) {
      Constant& b = plan_.constants.at(step.inputs[2]);
      if (b.data.size() == 1) b.data.resize(static_cast<size_t>(weights[1]), b.data[0]);
      arguments.emplace(DNNL_ARG_BIAS, memory(plain_desc(row), engine(), b.data.data()));
    }
    memory y(primitive.dst_desc(), engine());
    arguments.emplace(DNNL_ARG_DST, y);
    add(Product(primitive), std::move(arguments));
    return y;
  }

  Plan& plan_;
  std::unique_ptr<Plan::Executable> made_;
  std::unordered_map<std::string, memory> values_;
};

std::unique_ptr<Plan::Executable> take_executable(Plan& plan, const std::vector<Dims>& shapes) {
  std::lock_guard lock(plan.mutex);
  auto& idle = plan.idle[shapes];
  if (idle.empty()) return Maker(plan).make(shapes);
  auto taken = std::move(idle.back());
  idle.pop_back();
  return taken;
}

int execute(Plan& plan, const treadle_host* host, treadle_call* call) {
  std::vector<treadle_tensor_view> views(plan.inputs.size());
  std::vector<Dims> shapes;
  for (size_t i = 0; i < views.size(); ++i) {
    if (!host->call_input(call, i, &views[i])) return 0;
    shapes.emplace_back(views[i].dims, views[i].dims + views[i].rank);
  }
  auto executable = take_executable(plan, shapes);
  for (size_t i = 0; i < views.size(); ++i) executable->inputs[i].set_data_handle(const_cast<void*>(views[i].data));
  for (size_t i = 0; i < executable->outputs.size(); ++i) {
    const Dims dims = executable->outputs[i].get_desc().dims();
    void* data = host->call_output(call, i, TREADLE_FLOAT32, dims.data(), dims.size());
    if (!data) return 0;
    executable->outputs[i].set_data_handle(data);
  }
  dnnl::stream stream(engine());
  for (const auto& [primitive, arguments] : executable->primitives) primitive.execute(stream, arguments);
  stream.wait();
  std::lock_guard lock(plan.mutex);
  plan.idle[shapes].push_back(std::move(executable));
  return 1;
}

int run(void*, void* compiled, const treadle_host* host, treadle_call* call) {
  try {
    return execute(*static_cast<Plan*>(compiled), host, call);
  } catch (const std::exception& error) {
    host->fail(error.what());
    return 0;
  }
}

size_t size_bytes(void*, const void* compiled) {
  size_t bytes = 0;
  for (const auto& [name, constant] : static_cast<const Plan*>(compiled)->constants) bytes += constant.data.size() * sizeof(float);
  return bytes;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int treadle_plugin_main(const treadle_host* host) {
  if (host->version < TREADLE_PLUGIN_VERSION) {
    host->fail("the library is older than the plugin");
    return 0;
  }
  static const char* const convolution_networks[] = {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Add", nullptr};
  static const char* const products[] = {"MatMul", "Gemm", "Relu", nullptr};
  const treadle_backend_property properties[] = {
      {.name = "convolutions", .enabled = 1, .inference_only = 1, .op_types = convolution_networks, .min_nodes = 2, .device = "cpu"},
      {.name = "products", .enabled = 0, .inference_only = 1, .op_types = products, .min_nodes = 1, .device = "cpu"}};
  const treadle_backend backend{.size = sizeof(treadle_backend),
                                .name = "onednn",
                                .user = nullptr,
                                .properties = properties,
                                .num_properties = std::size(properties),
                                .takes = takes,
                                .compile = compile,
                                .run = run,
                                .release = [](void*, void* compiled) { delete static_cast<Plan*>(compiled); },
                                .size_bytes = size_bytes};
  return host->register_backend(&backend);
}
