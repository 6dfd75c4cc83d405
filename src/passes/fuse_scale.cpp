// NhwcConv(x * s, 1x1) -> NhwcScaledPointwise(x, s), if s has one factor per channel of an image (squeeze-and-excite blocks) and the
// product has no other reader. The kernel scales whichever is smaller, image or weights, so results differ by rounding.
#include <fmt/format.h>

#include <algorithm>

#include "graph/rewriter.h"
#include "passes/channels_last.h"
#include "passes/layout.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {

bool is_plain_pointwise(const Graph& graph, const Node& node) {
  if (!node.is("NhwcConv", "treadle") || node.attributes.get_int("group", 1) != 1 || !is_stored(graph, node.inputs[1])) return false;
  const Type& w = graph.type(node.inputs[1]);
  const Ints strides = node.attributes.get_ints("strides"), pads = node.attributes.get_ints("pads");
  auto all = [](const Ints& values, int64_t value) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
  };
  return w.has_rank() && w.rank() == 4 && (*w.shape)[2] == Dim(1) && (*w.shape)[3] == Dim(1) && all(strides, 1) && all(pads, 0);
}

void replace_pair(Rewriter& rewriter, NodeId first, NodeId last, NodeSpec spec) {
  const NodeId pair[] = {first, last};
  rewriter.change(pair, [&] {
    Graph& graph = rewriter.graph();
    const ValueId out = graph.node(last).outputs[0];
    const ValueId result = graph.node(graph.add_node(std::move(spec), last)).outputs[0];
    graph.value(result).type = graph.type(out);
    rewriter.replace(out, result);
    graph.remove_node(last);
    graph.remove_node(first);
    return true;
  });
}

namespace {

/// Returns true if s has the shape [N, 1, 1, C] and x has the shape [N, H, W, C].
bool scales_channels(const Type& s, const Type& x) {
  if (!s.is_tensor() || !x.is_tensor() || s.dtype != DType::float32 || x.dtype != DType::float32 || !s.has_rank() || !x.has_rank())
    return false;
  if (s.rank() != 4 || x.rank() != 4) return false;
  const SymbolicShape &factors = *s.shape, &image = *x.shape;
  return factors[0] == image[0] && factors[1] == Dim(1) && factors[2] == Dim(1) && factors[3] == image[3];
}

void scale_in(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  for (NodeId id : graph.order()) {
    const Node& conv = graph.node(id);
    if (rewriter.is_at_limit() || !conv.is("NhwcConv", "treadle")) continue;
    const ValueId product = conv.inputs[0];
    const Node* mul = producer_of(graph, product);
    if (!mul || !mul->is("Mul")) continue;
    const bool second = scales_channels(graph.type(mul->inputs[1]), graph.type(mul->inputs[0]));
    if (!second && !scales_channels(graph.type(mul->inputs[0]), graph.type(mul->inputs[1]))) {
      declined(conv, [&] {
        return fmt::format("the Mul before it has {} and {}; an image and one float32 factor for each of its channels are needed",
                           found(graph, mul->inputs[0]), found(graph, mul->inputs[1]));
      });
      continue;
    }
    if (!is_plain_pointwise(graph, conv)) {
      declined(conv,
               "channels are scaled before it, but it is no 1x1 convolution of one group with constant weights, strides of 1 and no pads");
      continue;
    }
    if (!is_used_once(graph, product)) {
      declined(conv, "other nodes read the scaled image, too, or it is an output of the model:", mul);
      continue;
    }
    NodeSpec spec{.op_type = "NhwcScaledPointwise", .attributes = conv.attributes, .domain = "treadle"};
    for (std::string_view name : {"group", "strides", "pads", "dilations", "kernel_shape", "auto_pad"}) spec.attributes.erase(name);
    spec.name = conv.name;
    spec.inputs = {mul->inputs[second ? 0 : 1], mul->inputs[second ? 1 : 0]};
    spec.inputs.insert(spec.inputs.end(), conv.inputs.begin() + 1, conv.inputs.end());
    replace_pair(rewriter, graph.value(product).producer, id, std::move(spec));
  }
}

}  // namespace

Pass fuse_scale() {
  return graph_pass("fuse-scale", kLayout, kPacked, "channels' scaling and the pointwise NhwcConv behind it -> NhwcScaledPointwise",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph(scale_in); });
}

}  // namespace treadle::passes
