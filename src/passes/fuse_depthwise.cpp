// NhwcConv(NhwcConv(x), depthwise) -> NhwcConvDepthwise(x), if the intermediate image has no other reader and exceeds the inner caches.
// Such an image has more channels than the images before and after it. Without fusion, storing and loading it takes most of the time. The
// first convolution is 1x1, or reads only a few channels, like the first convolution of a network. Results are the same, bit for bit.
#include <fmt/format.h>

#include <algorithm>

#include "graph/rewriter.h"
#include "passes/channels_last.h"
#include "passes/layout.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

constexpr int64_t kLargeImage = 128 * 1024;  // number of floats that fill half of a usual L2 cache
bool is_depthwise(const Graph& graph, const Node& node) {
  if (!node.is("NhwcConv", "treadle") || !is_stored(graph, node.inputs[1])) return false;
  const Type& w = graph.type(node.inputs[1]);
  const Dim group(node.attributes.get_int("group", 1));
  return w.has_rank() && w.rank() == 4 && group != Dim(1) && (*w.shape)[0] == group && (*w.shape)[1] == Dim(1);
}

/// Returns true if the convolution reads few channels, such as colors. For such short sums, direct computation is the fastest method.
bool reads_few_channels(const Graph& graph, const Node& node) {
  if (!node.is("NhwcConv", "treadle") || node.attributes.get_int("group", 1) != 1 || !is_stored(graph, node.inputs[1])) return false;
  const Type& w = graph.type(node.inputs[1]);
  return w.has_rank() && w.rank() == 4 && (*w.shape)[1].is_const() && (*w.shape)[1].value() <= kFewChannels;
}

/// Returns true for an image larger than kLargeImage, or with unknown extents.
bool is_large(const Type& type) {
  int64_t elements = 1;
  for (const Dim& dim : *type.shape) {
    if (!dim.is_const()) return true;
    elements *= std::max<int64_t>(0, dim.value());
    if (elements > kLargeImage) return true;
  }
  return false;
}

bool can_be_joined(const Graph& graph, const Node& first, const Node& depthwise) {
  if (!first.is("NhwcConv", "treadle")) return false;
  const ValueId between = depthwise.inputs[0];
  if (!is_used_once(graph, between))
    return declined(depthwise, "other nodes read the image, too, or it is an output of the model, of", &first);
  if (!is_plain_pointwise(graph, first) && !reads_few_channels(graph, first))
    return declined(depthwise, "neither 1x1 in one group nor of a few channels is the convolution before it,", &first);
  if (first.has_input(3)) return declined(depthwise, "a residual is added to the image before it, by", &first);
  return is_large(graph.type(between)) || declined(depthwise, [&] {
           return fmt::format("the image before it is {}: up to {} floats stay in the caches, and two convolutions are as fast",
                              found(graph, between), kLargeImage);
         });
}

void depthwise_in(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  for (NodeId id : graph.order()) {
    if (rewriter.is_at_limit() || !is_depthwise(graph, graph.node(id))) continue;
    const Node& depthwise = graph.node(id);
    const ValueId between = depthwise.inputs[0];
    const NodeId producer = graph.value(between).producer;
    if (producer == kNoNode || !can_be_joined(graph, graph.node(producer), depthwise)) continue;
    const Node& first = graph.node(producer);
    NodeSpec spec{.op_type = "NhwcConvDepthwise", .attributes = depthwise.attributes, .domain = "treadle"};
    spec.name = depthwise.name;
    auto input = [](const Node& node, size_t i) { return node.has_input(i) ? node.inputs[i] : kNoValue; };
    spec.inputs = {first.inputs[0], first.inputs[1], input(first, 2), depthwise.inputs[1], input(depthwise, 2), input(depthwise, 3)};
    spec.attributes.erase("group");
    spec.attributes.set("inner_activation", std::string(first.attributes.get_string("activation", "none")));
    spec.attributes.set("inner_alpha", first.attributes.get_float("alpha", 0.0F));
    spec.attributes.set("inner_beta", first.attributes.get_float("beta", 0.0F));
    spec.attributes.set("inner_auto_pad", std::string(first.attributes.get_string("auto_pad", "NOTSET")));
    spec.attributes.set("planes", first.attributes.get_int("planes", 0));
    for (const char* name : {"dilations", "pads", "strides"})
      spec.attributes.set(fmt::format("inner_{}", name), first.attributes.get_ints(name));
    replace_pair(rewriter, producer, id, std::move(spec));
  }
}

}  // namespace

Pass fuse_depthwise() {
  return graph_pass("fuse-depthwise", kLayout, kPackedFloat32,
                    "a pointwise NhwcConv, or one of a few channels, and the depthwise one that reads it -> NhwcConvDepthwise",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph(depthwise_in); });
}

}  // namespace treadle::passes
