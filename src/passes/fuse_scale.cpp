// NhwcConv(x * s, 1x1) -> NhwcScaledPointwise(x, s), where s has one factor a channel of an image (squeeze-and-excite blocks) and nothing
// else reads the product. The kernel scales the weights instead of the image where these are fewer: the results differ by roundings.
#include <algorithm>

#include "passes/channels_last.h"
#include "passes/layout.h"
#include "passes/matching.h"

namespace treadle::passes {

bool is_plain_pointwise(const Graph& graph, const Node& node) {
  if (!node.is("NhwcConv", "treadle") || node.attributes.get_int("group", 1) != 1) return false;
  const Type& w = graph.type(node.inputs[1]);
  const Ints strides = node.attributes.get_ints("strides"), pads = node.attributes.get_ints("pads");
  auto all = [](const Ints& values, int64_t value) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
  };
  return w.has_rank() && w.rank() == 4 && (*w.shape)[2] == Dim(1) && (*w.shape)[3] == Dim(1) && all(strides, 1) && all(pads, 0);
}

void replace_pair(Graph& graph, NodeId first, NodeId last, NodeSpec spec) {
  std::vector<std::string> sources = graph.node(first).sources;
  const Node& replaced = graph.node(last);
  sources.insert(sources.end(), replaced.sources.begin(), replaced.sources.end());
  const ValueId out = replaced.outputs[0];
  const std::string name = graph.value(out).name;
  const NodeId made = graph.add_node(std::move(spec), last);
  graph.node(made).sources = std::move(sources);
  const ValueId result = graph.node(made).outputs[0];
  graph.value(result).type = graph.type(out);
  graph.replace_uses(out, result);
  graph.remove_node(last);
  graph.remove_node(first);
  graph.rename_value(out, name + "/fused");
  graph.rename_value(result, name);
}

namespace {

/// s of [N, 1, 1, C] for x of [N, H, W, C].
bool scales_channels(const Type& s, const Type& x) {
  if (!s.is_tensor() || !x.is_tensor() || s.dtype != DType::float32 || x.dtype != DType::float32 || !s.has_rank() || !x.has_rank())
    return false;
  if (s.rank() != 4 || x.rank() != 4) return false;
  const SymbolicShape &factors = *s.shape, &image = *x.shape;
  return factors[0] == image[0] && factors[1] == Dim(1) && factors[2] == Dim(1) && factors[3] == image[3];
}

}  // namespace

int64_t fuse_scale(Graph& graph, int64_t limit) {
  int64_t count = 0;
  for (NodeId id : graph.order()) {
    for (Body& body : graph.node(id).bodies) count += fuse_scale(*body.graph, limit - count);
    const Node& conv = graph.node(id);
    if (count >= limit || !is_plain_pointwise(graph, conv)) continue;
    const ValueId product = conv.inputs[0];
    const Node* mul = producer_of(graph, product);
    if (!mul || !mul->is("Mul") || !is_used_once(graph, product)) continue;
    const bool second = scales_channels(graph.type(mul->inputs[1]), graph.type(mul->inputs[0]));
    if (!second && !scales_channels(graph.type(mul->inputs[0]), graph.type(mul->inputs[1]))) continue;
    NodeSpec spec{.op_type = "NhwcScaledPointwise", .attributes = conv.attributes, .domain = "treadle"};
    for (std::string_view name : {"group", "strides", "pads", "dilations", "kernel_shape", "auto_pad"}) spec.attributes.erase(name);
    spec.name = conv.name;
    spec.inputs = {mul->inputs[second ? 0 : 1], mul->inputs[second ? 1 : 0]};
    spec.inputs.insert(spec.inputs.end(), conv.inputs.begin() + 1, conv.inputs.end());
    replace_pair(graph, graph.value(product).producer, id, std::move(spec));
    ++count;
  }
  return count;
}

}  // namespace treadle::passes
