// Layout rules for nodes that start regions in channels-last layout: convolutions, and the model's own Transposes.
#include <algorithm>
#include <numeric>

#include "kernels/conv/nhwc_bytes.h"
#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout_rules.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes::layout {
namespace {

constexpr int64_t kMaxTaps = 512;  // maximum number of window elements; kernels list them on the stack

bool all_equal(const Ints& values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
}

bool is_explicit(const Attributes& attributes) {
  const std::string_view pad = attributes.get_string("auto_pad", "NOTSET");
  return pad.empty() || pad == "NOTSET" || pad == "VALID";
}

// Returns true if a value that the model transposes to channels-first layout is an image. In training graphs, many operands of products are
// transposed too, so there the value must be read by a convolution or pool.
bool begins_region(const Layout& layout, ValueId id) {
  using How = ChannelsLast::How;
  const std::vector<Use>& uses = layout.graph().value(id).uses;
  return !layout.weights_change() || std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const Node& reader = layout.graph().node(use.node);
    const How how = reader.op ? reader.op->channels_last.how : How::by_element;
    return how == How::convolution || how == How::input_gradient || how == How::weights_gradient || how == How::window;
  });
}

}  // namespace

bool is_tiled(const Attributes& attributes, const Shape& weights) {
  const Ints kernel(weights.dims().begin() + 2, weights.dims().end());
  return attributes.get_ints("strides") == kernel && all_equal(attributes.get_ints("dilations"), 1) &&
         all_equal(attributes.get_ints("pads"), 0) && all_equal(attributes.get_ints("output_padding"), 0) &&
         !attributes.has("output_shape") && attributes.get_int("group", 1) == 1 && is_explicit(attributes);
}

NodeSpec same_operator(const Node& node) {
  return {.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .domain = node.domain};
}

NodeSpec layout_operator(const Node& node) {
  return {.op_type = std::string(node.op->channels_last.op), .inputs = node.inputs, .attributes = node.attributes, .domain = "treadle"};
}

bool fits_window(const Node& node, const Shape& weights) {
  const Ints dilations = node.attributes.get_ints("dilations");
  int64_t taps = weights.product(2, weights.rank());
  if (node.attributes.get_int("group", 1) == 1 && (dilations.empty() || dilations.back() == 1))
    taps /= std::max<int64_t>(1, weights[weights.rank() - 1]);
  return taps <= kMaxTaps && weights.num_elements() > 0;
}

bool convolution(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  if (!is_image(graph, node.inputs[0]) || !is_image(graph, node.outputs[0]))
    return declined(node,
                    [&] { return "it reads " + found(graph, node.inputs[0]) + "; float32 of rank 3 or 4 goes with channels innermost"; });
  const int rank = layout.rank(node.inputs[0]);
  const Tensor* weights = graph.stored_tensor(node.inputs[1]);
  const std::optional<Shape> shape = weights ? weights->shape() : computed_weights(layout, node.inputs[1], rank);
  if (!shape || shape->rank() != rank)
    return declined(node, [&] {
      return "its weights are " + found(graph, node.inputs[1]) +
             "; constants of the input's rank are needed, or computed ones whose shape is known";
    });
  if (!fits_window(node, *shape)) return declined(node, [&] { return "its window of " + to_string(*shape) + " is too large"; });
  return layout.replace_image(node, layout_operator(node));
}

bool quantized_convolution(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  const bool sums_only = node.is("ConvInteger");
  const size_t w = sums_only ? 1 : 3, zero = sums_only ? 3 : 5;
  if (!kernels::has_fast_byte_products()) return declined(node, "this machine has no fast products of bytes");
  if (!is_byte_image(graph, node.inputs[0]) || !graph.type(node.outputs[0]).has_rank())
    return declined(node, [&] { return "it reads " + found(graph, node.inputs[0]) + "; bytes of rank 3 or 4 go with channels innermost"; });
  const Tensor* weights = graph.stored_tensor(node.inputs[w]);
  if (!weights || weights->dtype() != DType::int8 || weights->shape().rank() != layout.rank(node.inputs[0]) || weights->num_elements() == 0)
    return declined(node, [&] { return "its weights are " + found(graph, node.inputs[w]) + "; constants in int8 are needed"; });
  if (node.has_input(zero)) {
    const Tensor* zeros = graph.constant_tensor(node.inputs[zero]);
    if (!zeros || !all_elements_are(*zeros, 0)) return declined(node, "its weights have a zero point other than 0");
  }
  const Ints pads = node.attributes.get_ints("pads");
  if (!kernels::has_nhwc_bytes(weights->shape().dims(), node.attributes.get_int("group", 1)) ||
      std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
    return declined(node, "its groups or pads have no kernel for bytes with channels innermost");
  return layout.replace_image(node, layout_operator(node));
}

bool transposed_convolution(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  const Tensor* weights = graph.stored_tensor(node.inputs[1]);
  if (!is_image(graph, node.inputs[0]) || !is_image(graph, node.outputs[0]) || !weights ||
      weights->shape().rank() != layout.rank(node.inputs[0]))
    return declined(node, [&] {
      return "it reads " + found(graph, node.inputs[0]) + " and weights " + found(graph, node.inputs[1]) +
             "; float32 of rank 3 or 4 and constant weights go with channels innermost";
    });
  if (!is_tiled(node.attributes, weights->shape()))
    return declined(node,
                    "its windows overlap or leave gaps, it has pads or groups; strides as wide as the window, and nothing else, go with "
                    "channels innermost");
  NodeSpec spec = layout_operator(node);
  spec.attributes = {};
  return layout.replace_image(node, std::move(spec));
}

// Removes Transposes of the model between channels-first and channels-last layout.
bool permutation(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  const ValueId in = node.inputs[0], out = node.outputs[0];
  if (!is_any_image(graph, in)) return false;
  const int rank = layout.rank(in);
  const Ints perm = node.attributes.get_ints("perm");
  if (static_cast<int>(perm.size()) != rank) return false;
  if (!layout.has_moved(in)) {
    if (perm == channels_first_order(rank) && begins_region(layout, out)) layout.set_moved(out, in);
    return false;
  }
  const Ints merged = permuted(channels_first_order(rank), perm);
  Ints identity(static_cast<size_t>(rank));
  std::iota(identity.begin(), identity.end(), 0);
  if (merged == identity && !graph.is_output(out)) {
    graph.replace_uses(out, layout.moved(in));
  } else {
    const ValueId made = layout.transposed(layout.moved(in), merged, {.name = node.name}, node.id);
    graph.value(made).type = graph.type(out);
    graph.replace_uses(out, made);
  }
  return true;
}

}  // namespace treadle::passes::layout
