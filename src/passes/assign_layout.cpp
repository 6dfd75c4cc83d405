#include <algorithm>
#include <numeric>

#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "kernels/conv/nhwc_bytes.h"
#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout.h"
#include "passes/layout_pass.h"
#include "passes/matching.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

constexpr int64_t kMaxTaps = 512;  // of a window, that the kernels list on their stack

bool all_equal(const Ints& values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
}

bool is_explicit(const Attributes& attributes) {
  const std::string_view pad = attributes.get_string("auto_pad", "NOTSET");
  return pad.empty() || pad == "NOTSET" || pad == "VALID";
}

}  // namespace

void LayoutPass::run() {
  for (NodeId id : g_.order()) {
    const Node& node = g_.node(id);
    if (!node.bodies.empty() || node.outputs.empty() || node.outputs[0] == kNoValue || !(begins(node) || reads_moved(node))) continue;
    rewriter_.change(id, [&] { return move(node); });
  }
}

// Others follow.
bool LayoutPass::begins(const Node& node) {
  using How = ChannelsLast::How;
  constexpr How kFirst[] = {How::convolution,           How::input_gradient,         How::weights_gradient,
                            How::quantised_convolution, How::transposed_convolution, How::permutation,
                            How::window_gradient};
  return node.op && std::find(std::begin(kFirst), std::end(kFirst), node.op->channels_last.how) != std::end(kFirst);
}

// What the operator does under the layout is its own fact (OpDef::channels_last).
bool LayoutPass::move(const Node& node) {
  using How = ChannelsLast::How;
  if (!node.op) return false;
  const How how = node.op->channels_last.how;
  switch (how) {
    case How::convolution: return conv(node);
    case How::input_gradient: return input_gradient(node);
    case How::weights_gradient: return weights_gradient(node);
    case How::quantised_convolution: return quantised_conv(node);
    case How::transposed_convolution: return conv_transpose(node);
    case How::permutation: return transpose(node);
    case How::window_gradient: return window_gradient(node);
    default: break;
  }
  if (how == How::by_element && node.op->pointwise) return elementwise(node);
  return follow(node, how) ||
         declined(node, "an operand has its channels innermost; for its operands or attributes it has no form that reads them so");
}

bool LayoutPass::follow(const Node& node, ChannelsLast::How how) {
  using How = ChannelsLast::How;
  switch (how) {
    case How::first_operand: return first_operand(node);
    case How::axis: return along_axis(node);
    case How::axes_vector: return slice(node);
    case How::pads_vector: return pad(node);
    case How::numbers_per_axis: return resize(node);
    case How::reduction: return reduce(node);
    case How::spatial_reduction: return global_pool(node);
    case How::window: return pool(node);
    case How::scale_and_shift: return batch_norm(node);
    case How::statistics_gradient: return statistics_gradient(node);
    case How::normalization: return group_norm(node);
    case How::shape: return shape(node);
    default: return false;
  }
}

NodeSpec LayoutPass::same_operator(const Node& node) {
  return {.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .domain = node.domain};
}

NodeSpec LayoutPass::layout_operator(const Node& node) {
  return {.op_type = std::string(node.op->channels_last.op), .inputs = node.inputs, .attributes = node.attributes, .domain = "treadle"};
}

bool LayoutPass::is_image(ValueId id) const {
  if (id == kNoValue) return false;
  const Type& type = g_.type(id);
  return type.is_tensor() && type.dtype == DType::float32 && type.has_rank() && (type.rank() == 3 || type.rank() == 4);
}

bool LayoutPass::is_byte_image(ValueId id) const {
  if (id == kNoValue) return false;
  const Type& type = g_.type(id);
  return type.is_tensor() && (type.dtype == DType::uint8 || type.dtype == DType::int8) && type.has_rank() &&
         (type.rank() == 3 || type.rank() == 4);
}

bool LayoutPass::is_mask(ValueId id) const {
  if (id == kNoValue) return false;
  const Type& type = g_.type(id);
  return type.is_tensor() && type.dtype == DType::boolean && type.has_rank() && (type.rank() == 3 || type.rank() == 4);
}

bool LayoutPass::has_moved(ValueId id) const {
  return id != kNoValue && index_of(id) < moved_values_.size() && moved_values_[index_of(id)] != kNoValue;
}

bool LayoutPass::reads_moved(const Node& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return has_moved(input); });
}

void LayoutPass::set_moved(ValueId id, ValueId moved) {
  if (moved_values_.size() <= index_of(id)) moved_values_.resize(index_of(id) + 1, kNoValue);
  moved_values_[index_of(id)] = moved;
}

ValueId LayoutPass::transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before) {
  const SymbolicShape& in = *g_.type(id).shape;
  const SymbolicShape out = permuted(in, perm);
  Ints order_in, order_out;
  for (size_t i = 0; i < perm.size(); ++i) {
    if (in[i] != Dim(1)) order_in.push_back(static_cast<int64_t>(i));
    if (out[i] != Dim(1)) order_out.push_back(perm[i]);
  }
  NodeSpec spec = like;
  std::optional<Ints> target;
  if (order_in == order_out) target = reshape_target(in, out);
  if (target) {
    spec.op_type = "Reshape";
    spec.inputs = {id, ints(*target, like.name + "/shape")};
  } else {
    spec.op_type = "Transpose";
    spec.inputs = {id};
    spec.attributes = {{"perm", perm}};
  }
  const ValueId result = g_.node(g_.add_node(std::move(spec), before)).outputs[0];
  g_.value(result).type = Type::tensor(g_.type(id).dtype, out);
  return result;
}

ValueId LayoutPass::channels_last(ValueId id, NodeId before) {
  if (has_moved(id)) return moved_values_[index_of(id)];
  const ValueId result = transposed(id, channels_last_order(rank(id)), {.name = g_.value(id).name + "/channels_last"}, before);
  set_moved(id, result);
  return result;
}

void LayoutPass::take_place(ValueId old, ValueId beside) {
  const std::string name = g_.value(old).name;
  g_.value(beside).type = g_.type(old);
  g_.rename_value(old, name + "/replaced");
  g_.rename_value(beside, name);
  g_.replace_uses(old, beside);
}

void LayoutPass::move_image(ValueId old, ValueId last, NodeId before) {
  const Ints perm = channels_first_order(rank(old));
  g_.value(last).type = Type::tensor(g_.type(old).dtype, permuted(*g_.type(old).shape, channels_last_order(rank(old))));
  const std::string name = g_.value(old).name;
  g_.rename_value(old, name + "/replaced");
  const ValueId back = transposed(last, perm, {.name = name + "/channels_first", .output_names = {name}}, before);
  g_.value(back).type = g_.type(old);
  g_.replace_uses(old, back);
  set_moved(back, last);
}

NodeId LayoutPass::replace(const Node& node, NodeSpec spec) {
  spec.name = node.name;
  spec.num_outputs = std::max(spec.num_outputs, static_cast<int>(node.outputs.size()));
  const NodeId old = node.id;
  const std::vector<ValueId> outputs = node.outputs;
  const NodeId made = g_.add_node(std::move(spec), old);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoValue) continue;
    const ValueId last = g_.node(made).outputs[i];
    if (g_.type(outputs[i]).rank() < 3)  // a scale or zero point beside the image
      take_place(outputs[i], last);
    else
      move_image(outputs[i], last, old);
  }
  g_.remove_node(old);
  return made;
}

// Conv.
// Windows whose taps the kernels list on their stack.
bool LayoutPass::fits_window(const Node& node, const Shape& weights) const {
  const Ints dilations = node.attributes.get_ints("dilations");
  int64_t taps = weights.product(2, weights.rank());
  if (node.attributes.get_int("group", 1) == 1 && (dilations.empty() || dilations.back() == 1))
    taps /= std::max<int64_t>(1, weights[weights.rank() - 1]);
  return taps <= kMaxTaps && weights.num_elements() > 0;
}

bool LayoutPass::conv(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]))
    return declined(node,
                    [&] { return "it reads " + found(g_, node.inputs[0]) + "; float32 of rank 3 or 4 goes with channels innermost"; });
  const Tensor* weights = g_.stored_tensor(node.inputs[1]);
  const std::optional<Shape> shape = weights ? weights->shape() : computed_weights(node.inputs[1], rank(node.inputs[0]));
  if (!shape || shape->rank() != rank(node.inputs[0]))
    return declined(node, [&] {
      return "its weights are " + found(g_, node.inputs[1]) +
             "; constants of the input's rank are needed, or computed ones whose shape is known";
    });
  if (!fits_window(node, *shape)) return declined(node, [&] { return "its window of " + to_string(*shape) + " is too large"; });
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::quantised_conv(const Node& node) {
  const bool sums_only = node.is("ConvInteger");
  const size_t w = sums_only ? 1 : 3, zero = sums_only ? 3 : 5;
  const int r = is_byte_image(node.inputs[0]) ? rank(node.inputs[0]) : 0;
  if (!kernels::has_fast_byte_products()) return declined(node, "this machine has no fast products of bytes");
  if (r == 0 || !g_.type(node.outputs[0]).has_rank())
    return declined(node, [&] { return "it reads " + found(g_, node.inputs[0]) + "; bytes of rank 3 or 4 go with channels innermost"; });
  const Tensor* weights = g_.stored_tensor(node.inputs[w]);
  if (!weights || weights->dtype() != DType::int8 || weights->shape().rank() != r || weights->num_elements() == 0)
    return declined(node, [&] { return "its weights are " + found(g_, node.inputs[w]) + "; constants in int8 are needed"; });
  if (node.has_input(zero)) {
    const Tensor* zeros = g_.constant_tensor(node.inputs[zero]);
    if (!zeros || !all_elements_are(*zeros, 0)) return declined(node, "its weights have a zero point other than 0");
  }
  kernels::ConvParams params;
  params.group = node.attributes.get_int("group", 1);
  params.M = weights->shape()[0], params.C = weights->shape()[1] * params.group;
  const Ints pads = node.attributes.get_ints("pads");
  if (!kernels::has_nhwc_bytes(params) || std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
    return declined(node, "its groups or pads have no kernel for bytes with channels innermost");
  NodeSpec spec = layout_operator(node);
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::conv_transpose(const Node& node) {
  const Tensor* weights = g_.stored_tensor(node.inputs[1]);
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || !weights || weights->shape().rank() != rank(node.inputs[0]))
    return declined(node, [&] {
      return "it reads " + found(g_, node.inputs[0]) + " and weights " + found(g_, node.inputs[1]) +
             "; float32 of rank 3 or 4 and constant weights go with channels innermost";
    });
  const Attributes& a = node.attributes;
  const Shape& shape = weights->shape();
  const Ints kernel(shape.dims().begin() + 2, shape.dims().end());
  if (a.get_ints("strides") != kernel || !all_equal(a.get_ints("dilations"), 1) || !all_equal(a.get_ints("pads"), 0) ||
      !all_equal(a.get_ints("output_padding"), 0) || a.has("output_shape") || a.get_int("group", 1) != 1 || !is_explicit(a))
    return declined(node,
                    "its windows overlap or leave gaps, it has pads or groups; strides as wide as the window, and nothing else, go with "
                    "channels innermost");
  NodeSpec spec = layout_operator(node);
  spec.attributes = {};
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  replace(node, std::move(spec));
  return true;
}

/// Whether a value that the model itself moves to channels second is an image. Joint graphs are full of such Transposes, of the operands of
/// products: there it has to be read by a convolution or a pool.
bool LayoutPass::begins_region(ValueId id) const {
  using How = ChannelsLast::How;
  const std::vector<Use>& uses = g_.value(id).uses;
  return !weights_change_ || std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const Node& reader = g_.node(use.node);
    const How how = reader.op ? reader.op->channels_last.how : How::by_element;
    return how == How::convolution || how == How::input_gradient || how == How::weights_gradient || how == How::window;
  });
}

// Transposes of the model itself: those into and out of channels innermost vanish.
bool LayoutPass::transpose(const Node& node) {
  if (!is_any_image(node.inputs[0])) return false;
  const int r = rank(node.inputs[0]);
  const Ints perm = node.attributes.get_ints("perm");
  if (static_cast<int>(perm.size()) != r) return false;
  const ValueId in = node.inputs[0], out = node.outputs[0];
  if (has_moved(in)) {
    const ValueId moved = moved_values_[index_of(in)];
    const Ints merged = permuted(channels_first_order(r), perm);
    Ints identity(static_cast<size_t>(r));
    std::iota(identity.begin(), identity.end(), 0);
    if (merged == identity && !g_.is_output(out)) {
      g_.replace_uses(out, moved);
    } else {
      const NodeId old = node.id;
      const ValueId made = transposed(moved, merged, {.name = node.name}, old);
      g_.value(made).type = g_.type(out);
      g_.replace_uses(out, made);
    }
    return true;
  }
  if (perm == channels_first_order(r) && begins_region(out)) set_moved(out, in);
  return false;
}

int64_t assign_layout(Graph& graph, int64_t limit, bool weights_change) {
  const int64_t count = Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { LayoutPass(inside, weights_change).run(); });
  if (count == 0) return 0;
  remove_dead_nodes(graph);
  infer(graph);
  return count;
}

}  // namespace treadle::passes
