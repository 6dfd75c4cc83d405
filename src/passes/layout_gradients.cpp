// What training adds: convolutions of weights that change, and gradients, which stand behind the forward part in the same graph.
#include <algorithm>

#include "graph/internal_attributes.h"
#include "passes/layout_pass.h"
#include "passes/matching.h"

namespace treadle::passes {

/// The extents of weights that are computed or fed, where the graph is one in which weights change.
std::optional<Shape> LayoutPass::computed_weights(ValueId id, int r) const {
  const Type& type = g_.type(id);
  if (!weights_change_ || !type.is_tensor() || type.dtype != DType::float32 || !type.is_static() || type.rank() != r) return std::nullopt;
  return type.static_shape();
}

bool LayoutPass::input_gradient(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0])) return false;
  const std::optional<Shape> weights = computed_weights(node.inputs[1], rank(node.inputs[0]));
  if (!weights || !fits_window(node, *weights)) return false;
  // Where windows leave pixels out, each phase of the strides is a convolution of its own; dilated ones begin before their image then.
  const Ints strides = node.attributes.get_ints("strides"), dilations = node.attributes.get_ints("dilations"),
             pads = node.attributes.get_ints("pads");
  const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t d) { return d != 1; });
  const bool steps = std::any_of(strides.begin(), strides.end(), [](int64_t s) { return s != 1; });
  if (dilated && (steps || node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET")) return false;
  for (size_t i = 0; dilated && i < pads.size(); ++i) {
    const size_t axis = i % dilations.size();
    if (pads[i] > ((*weights)[static_cast<int>(axis) + 2] - 1) * dilations[axis]) return false;
  }
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::weights_gradient(const Node& node) {
  const ValueId dy = node.inputs[0], x = node.inputs[1], dw = node.outputs[0];
  if (!is_image(dy) || !is_image(x)) return false;
  const std::optional<Shape> weights = computed_weights(dw, rank(x));
  if (!weights || !fits_window(node, *weights)) return false;
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = channels_last(dy, node.id);
  spec.inputs[1] = channels_last(x, node.id);
  spec.name = node.name;
  const NodeId old = node.id;
  const ValueId made = g_.node(g_.add_node(std::move(spec), old)).outputs[0];
  g_.value(made).type = g_.type(dw);
  const std::string name = g_.value(dw).name;
  g_.rename_value(dw, name + "/replaced");
  g_.rename_value(made, name);
  g_.replace_uses(dw, made);
  g_.remove_node(old);
  return true;
}

/// In training: a node computes the statistics, for the gradient too, and pointwise operators the image, so that what follows can join
/// them, and the image costs little to be made again.
bool LayoutPass::batch_statistics(const Node& node) {
  const ValueId x = node.inputs[0];
  for (size_t i = 1; i < 5; ++i) {
    const Type& type = g_.type(node.inputs[i]);
    if (!type.is_tensor() || type.dtype != DType::float32) return false;
  }
  if (!weights_change_ || !is_image(x) || !g_.type(node.outputs[0]).has_rank()) return false;
  const NodeId before = node.id;
  const std::string name = node.name;
  const std::vector<ValueId> inputs = node.inputs, outputs = node.outputs;
  NodeSpec spec{.op_type = std::string(node.op->channels_last.training_op),
                .inputs = {channels_last(x, before), inputs[1], inputs[3], inputs[4]},
                .domain = "treadle",
                .name = name + "/statistics",
                .num_outputs = 5};
  spec.attributes.set("epsilon", node.attributes.get_float("epsilon", 1e-5F));
  spec.attributes.set("momentum", node.attributes.get_float("momentum", 0.9F));
  spec.attributes.set("unbiased_variance", node.attributes.get_int(kUnbiasedVariance, 0));
  const NodeId statistics = g_.add_node(std::move(spec), before);
  const std::vector<ValueId> found = g_.node(statistics).outputs;
  for (ValueId value : found) g_.value(value).type = g_.type(inputs[1]);
  for (size_t i : {1, 2})
    if (i < outputs.size() && outputs[i] != kNoValue) take_place(outputs[i], found[i - 1]);
  auto add = [&](const char* op, ValueId image, ValueId number) {
    return add_inferred(g_, {.op_type = op, .inputs = {image, number}, .name = name + "/" + op}, before, {});
  };
  const ValueId centred = add("Sub", channels_last(x, before), found[2]);
  move_image(outputs[0], add("Add", add("Mul", centred, found[4]), inputs[2]), before);
  g_.remove_node(before);
  normalized_[static_cast<uint32_t>(x)] = statistics;
  return true;
}

/// By running statistics and parameters that change from run to run: a scale and a shift of each channel, computed in each.
bool LayoutPass::computed_affine(const Node& node) {
  for (size_t i = 1; i < 5; ++i) {
    const Type& type = g_.type(node.inputs[i]);
    if (!weights_change_ || !type.is_tensor() || type.dtype != DType::float32) return false;
  }
  const NodeId before = node.id;
  const std::string name = node.name;
  auto add = [&](const char* op, std::vector<ValueId> inputs) {
    return add_inferred(g_, {.op_type = op, .inputs = std::move(inputs), .name = name + "/" + op}, before, {});
  };
  const ValueId scale = node.inputs[1], bias = node.inputs[2], mean = node.inputs[3], variance = node.inputs[4],
                epsilon = g_.add_constant(name + "/epsilon", Tensor::scalar(node.attributes.get_float("epsilon", 1e-5F)));
  const ValueId factor = add("Div", {scale, add("Sqrt", {add("Add", {variance, epsilon})})});
  const ValueId shift = add("Sub", {bias, add("Mul", {mean, factor})});
  replace(node, {.op_type = std::string(node.op->channels_last.op),
                 .inputs = {channels_last(node.inputs[0], before), factor, shift},
                 .domain = "treadle"});
  return true;
}

bool LayoutPass::statistics_gradient(const Node& node) {
  const ValueId x = node.inputs[1];
  const auto found = normalized_.find(static_cast<uint32_t>(x));
  if (found == normalized_.end() || !is_image(node.inputs[0]) || !has_moved(x)) return false;
  const Node& forward = g_.node(found->second);
  if (forward.attributes.get_float("epsilon", 1e-5F) != node.attributes.get_float("epsilon", 1e-5F)) return false;
  NodeSpec spec{.op_type = std::string(node.op->channels_last.op), .domain = "treadle"};
  const ValueId mean = forward.outputs[2], inverse = forward.outputs[3];
  spec.inputs = {channels_last(x, node.id), node.inputs[2], mean, inverse, channels_last(node.inputs[0], node.id)};
  replace(node, std::move(spec));
  return true;
}

/// A pool whose places only gradients read, which find them again in the image.
bool LayoutPass::pool_with_places(const Node& node) {
  using How = ChannelsLast::How;
  const Ints pads = node.attributes.get_ints("pads");
  if (!weights_change_ || !is_image(node.inputs[0]) || !is_image(node.outputs[0]) || node.attributes.get_int("storage_order") != 0 ||
      g_.is_output(node.outputs[1]) || std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
    return false;
  for (const Use& use : g_.value(node.outputs[1]).uses) {
    const Node& reader = g_.node(use.node);
    if (!reader.op || reader.op->channels_last.how != How::window_gradient) return false;
  }
  const ValueId x = node.inputs[0], y = node.outputs[0], moved = channels_last(x, node.id);
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = moved;
  spec.attributes.erase("storage_order");
  spec.name = node.name;
  const ValueId last = g_.node(g_.add_node(std::move(spec), node.id)).outputs[0];
  g_.value(last).type = Type::tensor(DType::float32, permuted(*g_.type(y).shape, channels_last_order(rank(y))));
  const std::string name = g_.value(y).name;
  g_.rename_value(y, name + "/replaced");
  const ValueId back = transposed(last, channels_first_order(rank(y)), {.name = name + "/channels_first", .output_names = {name}}, node.id);
  g_.value(back).type = g_.type(y);
  g_.replace_uses(y, back);
  set_moved(back, last);
  return true;  // the node stays for its places, until the gradients that read them have moved
}

bool LayoutPass::window_gradient(const Node& node) {
  const Node* pool = producer_of(g_, node.inputs[1]);
  if (!pool || !pool->op || pool->op->channels_last.how != ChannelsLast::How::window || !has_moved(pool->inputs[0]) ||
      !is_image(node.inputs[0]) || !is_image(node.outputs[0]) || !g_.value(pool->outputs[0]).uses.empty() || !weights_change_)
    return false;
  NodeSpec spec{.op_type = std::string(node.op->channels_last.op), .attributes = pool->attributes, .domain = "treadle"};
  spec.attributes.erase("storage_order");
  const ValueId x = pool->inputs[0];
  spec.inputs = {channels_last(node.inputs[0], node.id), channels_last(x, node.id)};
  replace(node, std::move(spec));
  return true;
}

}  // namespace treadle::passes
