// Layout rules for training graphs: convolutions whose weights change, and gradients, which follow the forward part in the same graph.
#include <algorithm>

#include "graph/internal_attributes.h"
#include "passes/layout_rules.h"
#include "passes/matching.h"

namespace treadle::passes::layout {
namespace {

bool has_other_than(const Ints& values, int64_t value) {
  return std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != value; });
}

bool are_float32(const Graph& graph, const Node& node, size_t first_input, size_t end) {
  for (size_t i = first_input; i < end; ++i) {
    const Type& type = graph.type(node.inputs[i]);
    if (!type.is_tensor() || type.dtype != DType::float32) return false;
  }
  return true;
}

// Returns true if the kernel supports the windows. With strides, the kernel computes each phase as a separate convolution; with dilation
// too, windows of these convolutions would begin before the image.
bool can_scatter(const Attributes& attributes, const Shape& weights) {
  const Ints dilations = attributes.get_ints("dilations"), pads = attributes.get_ints("pads");
  if (!has_other_than(dilations, 1)) return true;
  if (has_other_than(attributes.get_ints("strides"), 1) || attributes.get_string("auto_pad", "NOTSET") != "NOTSET") return false;
  for (size_t i = 0; i < pads.size(); ++i) {
    const size_t axis = i % dilations.size();
    if (pads[i] > (weights[static_cast<int>(axis) + 2] - 1) * dilations[axis]) return false;
  }
  return true;
}

// Adds nodes before a given node and infers the types of their outputs.
class Computation {
 public:
  Computation(Graph& graph, const Node& node) : graph_(graph), before_(node.id), name_(node.name) {}
  ValueId add(const char* op, std::vector<ValueId> inputs) {
    return add_inferred(graph_, {.op_type = op, .inputs = std::move(inputs), .name = name_ + "/" + op}, before_, {});
  }

 private:
  Graph& graph_;
  const NodeId before_;
  const std::string name_;
};

}  // namespace

std::optional<Shape> computed_weights(const Layout& layout, ValueId id, int rank) {
  const Type& type = layout.graph().type(id);
  if (!layout.weights_change() || !type.is_tensor() || type.dtype != DType::float32 || !type.is_static() || type.rank() != rank)
    return std::nullopt;
  return type.static_shape();
}

bool input_gradient(Layout& layout, const Node& node) {
  const std::optional<Shape> weights = computed_weights(layout, node.inputs[1], layout.rank(node.inputs[0]));
  if (!weights || !fits_window(node, *weights) || !can_scatter(node.attributes, *weights)) return false;
  return layout.replace_image(node, layout_operator(node));
}

bool weights_gradient(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  const ValueId dy = node.inputs[0], x = node.inputs[1], dw = node.outputs[0];
  if (!is_image(graph, x)) return false;
  const std::optional<Shape> weights = computed_weights(layout, dw, layout.rank(x));
  if (!weights || !fits_window(node, *weights)) return false;
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = layout.channels_last(dy, node.id);
  spec.inputs[1] = layout.channels_last(x, node.id);
  spec.name = node.name;
  const NodeId old = node.id;
  layout.take_place(dw, graph.node(graph.add_node(std::move(spec), old)).outputs[0]);
  graph.remove_node(old);
  return true;
}

// Replaces a BatchNormalization by one node that computes the statistics (also used by the gradient), and pointwise operators that compute
// the image. Operators after them can be fused with them, and the image can be recomputed cheaply.
bool statistics(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  const ValueId x = node.inputs[0];
  if (!layout.weights_change() || !are_float32(graph, node, 1, 5) || !graph.type(node.outputs[0]).has_rank()) return false;
  const NodeId before = node.id;
  const std::string name = node.name;
  const std::vector<ValueId> inputs = node.inputs, outputs = node.outputs;
  NodeSpec spec{.op_type = std::string(node.op->channels_last.training_op),
                .inputs = {layout.channels_last(x, before), inputs[1], inputs[3], inputs[4]},
                .domain = "treadle",
                .name = name + "/statistics",
                .num_outputs = 5};
  spec.attributes.set("epsilon", node.attributes.get_float("epsilon", 1e-5F));
  spec.attributes.set("momentum", node.attributes.get_float("momentum", 0.9F));
  spec.attributes.set("unbiased_variance", node.attributes.get_int(kUnbiasedVariance, 0));
  const NodeId made = graph.add_node(std::move(spec), before);
  const std::vector<ValueId> found = graph.node(made).outputs;  // running mean and variance, mean, inverse deviation, factor
  for (ValueId value : found) graph.value(value).type = graph.type(inputs[1]);
  for (size_t i : {1, 2})
    if (i < outputs.size() && outputs[i] != kNoValue) layout.take_place(outputs[i], found[i - 1]);
  Computation image(graph, node);
  const ValueId centered = image.add("Sub", {layout.channels_last(x, before), found[2]});
  layout.move_image(outputs[0], image.add("Add", {image.add("Mul", {centered, found[4]}), inputs[2]}), before);
  graph.remove_node(before);
  layout.set_statistics(x, made);
  return true;
}

// Running statistics and parameters may change between runs, so added nodes compute scale and shift per channel in each run.
bool computed_scale_and_shift(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  if (!layout.weights_change() || !are_float32(graph, node, 1, 5)) return false;
  Computation channels(graph, node);
  const ValueId scale = node.inputs[1], bias = node.inputs[2], mean = node.inputs[3], variance = node.inputs[4],
                epsilon = graph.add_constant(node.name + "/epsilon", Tensor::scalar(node.attributes.get_float("epsilon", 1e-5F)));
  const ValueId factor = channels.add("Div", {scale, channels.add("Sqrt", {channels.add("Add", {variance, epsilon})})});
  const ValueId shift = channels.add("Sub", {bias, channels.add("Mul", {mean, factor})});
  return layout.replace(node, {.op_type = std::string(node.op->channels_last.op),
                               .inputs = {layout.channels_last(node.inputs[0], node.id), factor, shift},
                               .domain = "treadle"});
}

bool statistics_gradient(Layout& layout, const Node& node) {
  const ValueId dy = node.inputs[0], x = node.inputs[1];
  const Node* forward = layout.statistics_of(x);
  if (!forward || !layout.has_moved(x) || forward->attributes.get_float("epsilon", 1e-5F) != node.attributes.get_float("epsilon", 1e-5F))
    return false;
  const ValueId mean = forward->outputs[2], inverse = forward->outputs[3];
  return layout.replace(node, {.op_type = std::string(node.op->channels_last.op),
                               .inputs = {layout.moved(x), node.inputs[2], mean, inverse, layout.channels_last(dy, node.id)},
                               .domain = "treadle"});
}

// Moves a MaxPool whose indices only gradients read. In channels-last layout, these gradients find the maxima again in the image. The old
// node stays, to make the indices, until all such gradients have been moved.
bool window_with_places(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  const Ints pads = node.attributes.get_ints("pads");
  if (!layout.weights_change() || !is_image(graph, node.inputs[0]) || !is_image(graph, node.outputs[0]) ||
      node.attributes.get_int("storage_order") != 0 || graph.is_output(node.outputs[1]) ||
      std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
    return false;
  for (const Use& use : graph.value(node.outputs[1]).uses) {
    const Node& reader = graph.node(use.node);
    if (!reader.op || reader.op->channels_last.how != ChannelsLast::How::window_gradient) return false;
  }
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = layout.channels_last(node.inputs[0], node.id);
  spec.attributes.erase("storage_order");
  spec.name = node.name;
  layout.move_image(node.outputs[0], graph.node(graph.add_node(std::move(spec), node.id)).outputs[0], node.id);
  return true;
}

bool window_gradient(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  const Node* pool = producer_of(graph, node.inputs[1]);
  if (!layout.weights_change() || !pool || !pool->op || pool->op->channels_last.how != ChannelsLast::How::window ||
      !layout.has_moved(pool->inputs[0]) || !graph.value(pool->outputs[0]).uses.empty())
    return false;
  NodeSpec spec{.op_type = std::string(node.op->channels_last.op), .attributes = pool->attributes, .domain = "treadle"};
  spec.attributes.erase("storage_order");
  spec.inputs = {layout.channels_last(node.inputs[0], node.id), layout.moved(pool->inputs[0])};
  return layout.replace(node, std::move(spec));
}

}  // namespace treadle::passes::layout
