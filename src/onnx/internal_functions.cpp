#include "onnx/internal_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "graph/elementwise_step.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

AttributeDef attribute(std::string name, int64_t value) {
  AttributeDef def;
  def.name = std::move(name), def.type = AttributeType::i, def.i = value;
  return def;
}
AttributeDef attribute(std::string name, float value) {
  AttributeDef def;
  def.name = std::move(name), def.type = AttributeType::f, def.f = value;
  return def;
}
AttributeDef attribute(std::string name, std::string value) {
  AttributeDef def;
  def.name = std::move(name), def.type = AttributeType::s, def.s = std::move(value);
  return def;
}
AttributeDef attribute(std::string name, std::vector<int64_t> values) {
  AttributeDef def;
  def.name = std::move(name), def.type = AttributeType::ints, def.ints = std::move(values);
  return def;
}
AttributeDef attribute(std::string name, const Tensor& value) {
  AttributeDef def;
  def.name = std::move(name), def.type = AttributeType::tensor;
  def.t = std::make_unique<TensorDef>();
  def.t->value = value, def.t->dtype = value.dtype(), def.t->shape = value.shape();
  return def;
}

/// Writes a body node by node.
class FunctionBody {
 public:
  FunctionBody(const Graph& graph, const Node& node, std::span<const std::string> inputs, std::span<const std::string> outputs)
      : graph_(graph), node_(node), inputs_(inputs), outputs_(outputs) {}

  const Node& node() const { return node_; }
  /// @throws Error(not_implemented) if inference does not know it.
  int64_t rank(size_t i) const {
    const Type& type = graph_.type(node_.inputs.at(i));
    if (!type.is_tensor() || !type.has_rank()) throw Error(ErrorCode::not_implemented, "the rank of the image is not known");
    return type.rank();
  }
  /// @throws Error(not_implemented) if it is not constant.
  Shape shape(size_t i) const {
    const Type& type = graph_.type(node_.inputs.at(i));
    if (!type.is_static()) throw Error(ErrorCode::not_implemented, "the extents of the weights are not known");
    return type.static_shape();
  }
  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return outputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && !inputs_[i].empty(); }
  std::string in(size_t i) const { return has(i) ? inputs_[i] : std::string(); }

  template <typename... Attributes>
  std::string op(std::string_view op_type, std::vector<std::string> inputs, Attributes&&... attributes) {
    std::vector<AttributeDef> list;
    (list.push_back(std::forward<Attributes>(attributes)), ...);
    return op_with(op_type, std::move(inputs), std::move(list));
  }
  std::string op_with(std::string_view op_type, std::vector<std::string> inputs, std::vector<AttributeDef> attributes) {
    NodeDef def;
    def.op_type = op_type;
    def.inputs = std::move(inputs);
    while (!def.inputs.empty() && def.inputs.back().empty()) def.inputs.pop_back();
    def.outputs = {fmt::format("value_{}", nodes_.size())};
    def.attributes = std::move(attributes);
    nodes_.push_back(std::move(def));
    return nodes_.back().outputs[0];
  }
  /// The node's own attributes of these names, as far as it has them.
  std::vector<AttributeDef> own(std::initializer_list<std::string_view> names) const {
    std::vector<AttributeDef> list;
    for (std::string_view name : names) {
      const Attribute* value = node_.attributes.find(name);
      if (!value) continue;
      if (const auto* number = std::get_if<int64_t>(value))
        list.push_back(attribute(std::string(name), *number));
      else if (const auto* numbers = std::get_if<std::vector<int64_t>>(value))
        list.push_back(attribute(std::string(name), *numbers));
      else if (const auto* text = std::get_if<std::string>(value))
        list.push_back(attribute(std::string(name), *text));
    }
    return list;
  }
  std::string constant(const Tensor& value) { return op("Constant", {}, attribute("value", value)); }
  std::string number(float value) { return constant(Tensor::scalar(value)); }
  std::string ints(std::vector<int64_t> values) { return constant(Tensor::vector<int64_t>(values)); }
  /// The value is output i of the function.
  void give(size_t i, const std::string& value) {
    NodeDef def;
    def.op_type = "Identity";
    def.inputs = {value};
    def.outputs = {outputs_[i]};
    nodes_.push_back(std::move(def));
  }
  std::vector<NodeDef> take() { return std::move(nodes_); }

 private:
  const Graph& graph_;
  const Node& node_;
  std::span<const std::string> inputs_, outputs_;
  std::vector<NodeDef> nodes_;
};

struct InternalFunction {
  std::string_view op_type;
  void (*write)(FunctionBody&);
  int (*opset)(const Node&);
};
int any_opset(const Node&) { return 1; }

// A Yield hands its inputs to whoever runs the graph and takes values back; where nobody does, the values pass through.
void write_yield(FunctionBody& b) {
  for (size_t i = 0; i < b.num_outputs(); ++i) {
    if (i >= b.num_inputs())
      throw Error(ErrorCode::not_implemented, "a Yield that takes more values back than it hands out cannot be written");
    b.give(i, b.in(i));
  }
}

int activation_opset(const Node& node) {
  const std::string_view name = node.attributes.get_string("activation");
  if (name == "Gelu" || name == "GeluTanh") return 20;
  if (name == "Swish") return 24;
  if (name == "Mish") return 18;
  return name == "HardSwish" ? 14 : 1;
}

std::string write_activation(FunctionBody& b, const std::string& x) {
  const Attributes& attributes = b.node().attributes;
  const std::string name(attributes.get_string("activation"));
  const float alpha = attributes.get_float("activation_alpha"), beta = attributes.get_float("activation_beta");
  if (name.empty()) return x;
  if (name == "Clip") return b.op(name, {x, b.number(alpha), b.number(beta)});
  if (name == "GeluTanh") return b.op("Gelu", {x}, attribute("approximate", std::string("tanh")));
  if (name == "HardSigmoid") return b.op(name, {x}, attribute("alpha", alpha), attribute("beta", beta));
  if (name == "LeakyRelu" || name == "Elu" || name == "Swish") return b.op(name, {x}, attribute("alpha", alpha));
  return b.op(name, {x});
}

void write_fused_matmul(FunctionBody& b) {
  std::string weights = b.in(1);
  if (b.node().attributes.get_int("transB") != 0) weights = b.op("Transpose", {weights}, attribute("perm", std::vector<int64_t>{1, 0}));
  std::string y = b.op("MatMul", {b.in(0), weights});
  for (size_t i : {2U, 3U})
    if (b.has(i)) y = b.op("Add", {y, b.in(i)});
  b.give(0, write_activation(b, y));
}

// The operand as [batch, heads, length, size].
std::string heads_first(FunctionBody& b, size_t i, std::string_view layout_name, std::string_view part_name) {
  const Attributes& attributes = b.node().attributes;
  const int64_t layout = attributes.get_int(layout_name);
  std::string x = b.in(i);
  if (layout == 2) x = b.op("Gather", {x, b.constant(Tensor::scalar(attributes.get_int(part_name)))}, attribute("axis", int64_t{2}));
  return layout == 0 ? x : b.op("Transpose", {x}, attribute("perm", std::vector<int64_t>{0, 2, 1, 3}));
}

// x [batch, kv_heads, length, size] with each head repeated as often as queries share it: Q's heads over x's, known only in a run. A
// Reshape of Q to [batch, kv_heads, shared, length, size] lets MatMul broadcast instead.
void write_fused_attention(FunctionBody& b) {
  const Attributes& attributes = b.node().attributes;
  const std::string q = heads_first(b, 0, "q_layout", "q_part"), k = heads_first(b, 1, "k_layout", "k_part"),
                    v = heads_first(b, 2, "v_layout", "v_part");
  auto extent = [&](const std::string& x, int64_t axis) { return b.op("Gather", {b.op("Shape", {x}), b.ints({axis})}); };
  const std::string batch = extent(q, 0), heads = extent(q, 1), length = extent(q, 2), kv_heads = extent(k, 1), keys = extent(k, 2);
  auto concat = [&](std::vector<std::string> parts) { return b.op("Concat", std::move(parts), attribute("axis", int64_t{0})); };
  const std::string rest = b.ints({-1}), shared = b.op("Div", {heads, kv_heads});
  const std::string grouped = b.op("Reshape", {q, concat({batch, kv_heads, shared, length, rest})});
  const std::string two = b.ints({2});
  const std::string k_shared = b.op("Unsqueeze", {k, two}), v_shared = b.op("Unsqueeze", {v, two});
  const std::string turned = b.op("Transpose", {k_shared}, attribute("perm", std::vector<int64_t>{0, 1, 2, 4, 3}));
  std::string scores = b.op("Mul", {b.op("MatMul", {grouped, turned}), b.number(attributes.get_float("scale", 1))});
  scores = b.op("Reshape", {scores, concat({batch, heads, length, keys})});
  if (b.has(3) && attributes.has("masked_value")) {
    const std::string masked = b.number(attributes.get_float("masked_value"));
    scores = attributes.get_int("mask_keeps", 1) != 0 ? b.op("Where", {b.in(3), scores, masked}) : b.op("Where", {b.in(3), masked, scores});
  } else if (b.has(3)) {
    scores = b.op("Add", {scores, b.in(3)});
  }
  std::string p = b.op("Softmax", {scores}, attribute("axis", int64_t{-1}));
  if (attributes.get_int("nan_to_zero") != 0) p = b.op("Where", {b.op("IsNaN", {p}), b.number(0), p});
  p = b.op("Reshape", {p, concat({batch, kv_heads, shared, length, keys})});
  std::string y = b.op("Reshape", {b.op("MatMul", {p, v_shared}), concat({batch, heads, length, rest})});
  if (attributes.get_int("y_layout") == 1) y = b.op("Transpose", {y}, attribute("perm", std::vector<int64_t>{0, 2, 1, 3}));
  b.give(0, y);
}

void write_fused_rotary(FunctionBody& b) {
  const Attributes& attributes = b.node().attributes;
  const std::vector<int64_t> turn{0, 2, 1, 3};
  const bool interleaved = attributes.get_int("interleaved") != 0;
  std::string x = b.in(0);
  if (attributes.get_int("x_layout") != 0) x = b.op("Transpose", {x}, attribute("perm", turn));
  const std::string pairs =
      b.op("Reshape", {x, b.ints(interleaved ? std::vector<int64_t>{0, 0, 0, -1, 2} : std::vector<int64_t>{0, 0, 0, 2, -1})});
  auto feature = [&](int64_t which) {  // of all pairs, with the axis that it was chosen from
    return b.op("Gather", {pairs, b.ints({which})}, attribute("axis", int64_t{interleaved ? 4 : 3}));
  };
  const std::string turned = b.op("Concat", {b.op("Neg", {feature(1)}), feature(0)}, attribute("axis", int64_t{interleaved ? 4 : 3}));
  const std::string rotated = b.op("Reshape", {turned, b.ints({0, 0, 0, -1})});
  std::string y = b.op("Add", {b.op("Mul", {x, b.in(1)}), b.op("Mul", {rotated, b.in(2)})});
  if (attributes.get_int("y_layout") != 0) y = b.op("Transpose", {y}, attribute("perm", turn));
  b.give(0, y);
}

int elementwise_opset(const Node& node) {
  int opset = 1;
  for (const std::string& text : node.attributes.get_strings("steps")) {
    const std::string op_type = ElementwiseStep::parse(text).op_type;
    if (op_type == "Gelu" || op_type == "GeluTanh") opset = std::max(opset, 20);
    if (op_type == "Swish") opset = std::max(opset, 24);
    if (op_type == "Mish") opset = std::max(opset, 18);
    if (op_type == "HardSwish") opset = std::max(opset, 14);
    if (op_type == "DequantizeLinear") opset = std::max(opset, 15);  // CastLike
  }
  return opset;
}

std::string write_step(FunctionBody& b, const ElementwiseStep& step, const std::vector<std::string>& operands) {
  const std::string& op = step.op_type;
  if (op == "ToFloat") return b.op("Cast", operands, attribute("to", static_cast<int64_t>(DType::float32)));
  if (op == "ToBool") return b.op("Cast", operands, attribute("to", static_cast<int64_t>(DType::boolean)));
  if (op == "GeluTanh") return b.op("Gelu", operands, attribute("approximate", std::string("tanh")));
  if (op == "Clip") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    return b.op(op, {operands[0], b.number(step.attribute("min", -kInfinity)), b.number(step.attribute("max", kInfinity))});
  }
  if (op == "DequantizeLinear" || op == "QuantizeLinear") {
    // A zero point that was not given is the number 0 here.
    const bool is_signed = step.attribute("low", 0) < 0;
    const std::string zero = op == "DequantizeLinear" ? b.op("CastLike", {operands[2], operands[0]})
                                                      : b.op("Cast", {operands[2]},
                                                             attribute("to", static_cast<int64_t>(is_signed ? DType::int8 : DType::uint8)));
    return b.op(op, {operands[0], operands[1], zero});
  }
  if (step.attributes.empty()) return b.op(op, operands);
  if (step.attributes.size() == 1) return b.op(op, operands, attribute(step.attributes[0].first, step.attributes[0].second));
  return b.op(op, operands, attribute(step.attributes[0].first, step.attributes[0].second),
              attribute(step.attributes[1].first, step.attributes[1].second));
}

void write_fused_elementwise(FunctionBody& b) {
  std::vector<std::string> values;
  for (size_t i = 0; i < b.num_inputs(); ++i) values.push_back(b.in(i));
  for (const std::string& text : b.node().attributes.get_strings("steps")) {
    const ElementwiseStep step = ElementwiseStep::parse(text);
    std::vector<std::string> operands;
    for (size_t operand : step.operands) operands.push_back(values.at(operand));
    values.push_back(write_step(b, step, operands));
  }
  b.give(0, values.back());
}

void write_quantized_matmul(FunctionBody& b) {
  auto codes = [&](size_t i) {  // less the zero point, as float32, in which they are exact
    std::string x = b.op("Cast", {b.in(i)}, attribute("to", static_cast<int64_t>(DType::float32)));
    if (!b.has(i + 2)) return x;
    return b.op("Sub", {x, b.op("Cast", {b.in(i + 2)}, attribute("to", static_cast<int64_t>(DType::float32)))});
  };
  const std::string a = b.op("Mul", {codes(0), b.in(1)}), w = b.op("Mul", {codes(3), b.in(4)});
  b.give(0, b.op("MatMul", {a, w}));
}

// Operators with channels innermost: those of ONNX between two Transposes.

std::string channels_first(FunctionBody& b, size_t i) {
  std::vector<int64_t> perm{0, b.rank(i) - 1};
  for (int64_t axis = 1; axis + 1 < b.rank(i); ++axis) perm.push_back(axis);
  return b.op("Transpose", {b.in(i)}, attribute("perm", std::move(perm)));
}
std::string channels_last(FunctionBody& b, const std::string& y) {
  std::vector<int64_t> perm{0};
  for (int64_t axis = 2; axis < b.rank(0); ++axis) perm.push_back(axis);
  perm.push_back(1);
  return b.op("Transpose", {y}, attribute("perm", std::move(perm)));
}

struct LayoutActivation {
  std::string_view name, op_type;
  int opset;
  std::string_view a, b;  // attributes
};
constexpr LayoutActivation kLayoutActivations[] = {{"relu", "Relu", 1, "", ""},
                                                   {"leaky_relu", "LeakyRelu", 1, "alpha", ""},
                                                   {"sigmoid", "Sigmoid", 1, "", ""},
                                                   {"hard_sigmoid", "HardSigmoid", 1, "alpha", "beta"},
                                                   {"tanh", "Tanh", 1, "", ""},
                                                   {"elu", "Elu", 1, "alpha", ""},
                                                   {"gelu", "Gelu", 20, "", ""},
                                                   {"silu", "Swish", 24, "alpha", ""},
                                                   {"hard_swish", "HardSwish", 14, "", ""},
                                                   {"mish", "Mish", 18, "", ""},
                                                   {"softplus", "Softplus", 1, "", ""}};

const LayoutActivation* layout_activation(const Node& node) {
  const std::string_view name = node.attributes.get_string("activation", "none");
  const auto* found = std::find_if(std::begin(kLayoutActivations), std::end(kLayoutActivations),
                                   [&](const LayoutActivation& activation) { return activation.name == name; });
  if (found != std::end(kLayoutActivations)) return found;
  if (name != "none" && name != "clip") throw Error(ErrorCode::not_implemented, fmt::format("the activation {} has no form in ONNX", name));
  return nullptr;
}
int layout_opset(const Node& node) {
  const LayoutActivation* activation = layout_activation(node);
  return activation ? activation->opset : 1;
}
std::string write_layout_activation(FunctionBody& b, const std::string& x) {
  const Attributes& attributes = b.node().attributes;
  const float alpha = attributes.get_float("alpha"), beta = attributes.get_float("beta");
  const LayoutActivation* activation = layout_activation(b.node());
  if (!activation) return attributes.get_string("activation", "none") == "clip" ? b.op("Clip", {x, b.number(alpha), b.number(beta)}) : x;
  std::vector<AttributeDef> list;
  if (!activation->a.empty()) list.push_back(attribute(std::string(activation->a), alpha));
  if (!activation->b.empty()) list.push_back(attribute(std::string(activation->b), beta));
  return b.op_with(activation->op_type, {x}, std::move(list));
}

void write_nhwc_conv(FunctionBody& b) {
  const bool planes = b.node().attributes.get_int("planes", 0) != 0;
  std::string y = b.op_with("Conv", {planes ? b.in(0) : channels_first(b, 0), b.in(1), b.in(2)},
                            b.own({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}));
  y = channels_last(b, y);
  if (b.has(3)) y = b.op("Add", {y, b.in(3)});
  b.give(0, write_layout_activation(b, y));
}

// Only windows that do not overlap come here: the stride is the extent of the window.
void write_nhwc_conv_transpose(FunctionBody& b) {
  const Shape kernel = b.shape(1);
  std::vector<int64_t> strides(kernel.begin() + 2, kernel.end());
  const std::string y = b.op("ConvTranspose", {channels_first(b, 0), b.in(1), b.in(2)}, attribute("strides", std::move(strides)));
  b.give(0, write_layout_activation(b, channels_last(b, y)));
}

void write_nhwc_pool(FunctionBody& b, std::string_view op_type) {
  const std::string y = b.op_with(op_type, {channels_first(b, 0)},
                                  b.own({"auto_pad", "dilations", "kernel_shape", "pads", "strides", "ceil_mode", "count_include_pad"}));
  b.give(0, channels_last(b, y));
}
void write_nhwc_max_pool(FunctionBody& b) { write_nhwc_pool(b, "MaxPool"); }
void write_nhwc_average_pool(FunctionBody& b) { write_nhwc_pool(b, "AveragePool"); }
// Dilated windows came to AveragePool with opset 19; 0 and 1 are what all opsets do.
int average_pool_opset(const Node& node) {
  const std::vector<int64_t>& dilations = node.attributes.get_ints("dilations");
  return dilations.empty() ? 1 : 19;
}

void write_nhwc_global_average_pool(FunctionBody& b) {
  std::vector<int64_t> axes;
  for (int64_t axis = 1; axis + 1 < b.rank(0); ++axis) axes.push_back(axis);
  b.give(0, b.op("ReduceMean", {b.in(0), b.ints(std::move(axes))}, attribute("keepdims", b.node().attributes.get_int("keepdims", 1))));
}
int reduce_mean_opset(const Node&) { return 18; }  // axes as an input

void write_nhwc_affine(FunctionBody& b) {
  const std::string y = b.op("Add", {b.op("Mul", {b.in(0), b.in(1)}), b.in(2)});
  b.give(0, write_layout_activation(b, y));
}

constexpr InternalFunction kFunctions[] = {{"NhwcConv", write_nhwc_conv, layout_opset},
                                           {"NhwcConvTranspose", write_nhwc_conv_transpose, layout_opset},
                                           {"NhwcMaxPool", write_nhwc_max_pool, any_opset},
                                           {"NhwcAveragePool", write_nhwc_average_pool, average_pool_opset},
                                           {"NhwcGlobalAveragePool", write_nhwc_global_average_pool, reduce_mean_opset},
                                           {"NhwcAffine", write_nhwc_affine, layout_opset},
                                           {"FusedElementwise", write_fused_elementwise, elementwise_opset},
                                           {"Yield", write_yield, any_opset},
                                           {"FusedAttention", write_fused_attention, any_opset},
                                           {"FusedMatMul", write_fused_matmul, activation_opset},
                                           {"FusedRotary", write_fused_rotary, any_opset},
                                           {"QuantizedMatMul", write_quantized_matmul, any_opset}};

const InternalFunction& function_of(const Node& node) {
  const auto* found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const InternalFunction& f) { return f.op_type == node.op_type; });
  if (found == std::end(kFunctions))
    throw Error(ErrorCode::not_implemented, "it has no form in standard operators").add_context(describe(node));
  return *found;
}

}  // namespace

int internal_function_opset(const Node& node) { return function_of(node).opset(node); }

std::string internal_function_variant(const Graph& graph, const Node& node) {
  if (!node.op_type.starts_with("Nhwc")) return {};
  const Type& image = graph.type(node.inputs[0]);
  std::string text = fmt::format(" rank {}", image.has_rank() ? image.rank() : -1);
  if (node.attributes.get_int("planes", 0) != 0) text += " planes";
  if (node.op_type == "NhwcConvTranspose") text += " " + to_string(graph.type(node.inputs[1]));
  return text;
}

std::vector<NodeDef> internal_function(const Graph& graph, const Node& node, std::span<const std::string> inputs,
                                       std::span<const std::string> outputs) {
  FunctionBody body(graph, node, inputs, outputs);
  function_of(node).write(body);
  return body.take();
}

}  // namespace treadle::onnx
