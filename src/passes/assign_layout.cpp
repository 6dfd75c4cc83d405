#include <algorithm>
#include <iterator>

#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "passes/layout.h"
#include "passes/layout_rules.h"
#include "passes/list.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

using How = ChannelsLast::How;

// For a layout rule: which operands must be float32 images.
enum class Images : uint8_t {
  any,      // the rule checks its operands itself
  operand,  // operand 0 must be a float32 image
  both      // operand 0 and output 0 must be one
};

struct LayoutRule {
  How how;
  layout::Rule* move;
  Images images;
  bool begins = false;  // true: the rule applies even if no operand is in channels-last layout yet
};

// The rules, one for each behavior that operators declare in OpDef::channels_last.
constexpr LayoutRule kLayoutRules[] = {
    {How::convolution, layout::convolution, Images::any, /*begins=*/true},
    {How::quantized_convolution, layout::quantized_convolution, Images::any, /*begins=*/true},
    {How::transposed_convolution, layout::transposed_convolution, Images::any, /*begins=*/true},
    {How::permutation, layout::permutation, Images::any, /*begins=*/true},
    {How::input_gradient, layout::input_gradient, Images::both, /*begins=*/true},
    {How::weights_gradient, layout::weights_gradient, Images::operand, /*begins=*/true},
    {How::window_gradient, layout::window_gradient, Images::both, /*begins=*/true},
    {How::by_element, layout::elementwise, Images::any},
    {How::first_operand, layout::first_operand, Images::any},
    {How::axis, layout::along_axis, Images::any},
    {How::axes_vector, layout::slice, Images::both},
    {How::pads_vector, layout::pad, Images::both},
    {How::numbers_per_axis, layout::resize, Images::both},
    {How::reduction, layout::reduction, Images::operand},
    {How::spatial_reduction, layout::spatial_reduction, Images::both},
    {How::window, layout::window, Images::any},
    {How::scale_and_shift, layout::scale_and_shift, Images::operand},
    {How::statistics_gradient, layout::statistics_gradient, Images::operand},
    {How::normalization, layout::normalization, Images::operand},
    {How::shape, layout::measurement, Images::any},
};

// Returns the layout rule for the node; null if its operator needs ONNX's layout.
const LayoutRule* rule_for(const Node& node) {
  if (!node.op) return nullptr;
  const How how = node.op->channels_last.how;
  if (how == How::by_element && !node.op->pointwise) return nullptr;
  const auto* found =
      std::find_if(std::begin(kLayoutRules), std::end(kLayoutRules), [&](const LayoutRule& rule) { return rule.how == how; });
  return found == std::end(kLayoutRules) ? nullptr : found;
}

bool has_images(const Graph& graph, const Node& node, Images images) {
  return images == Images::any || (is_image(graph, node.inputs[0]) && (images == Images::operand || is_image(graph, node.outputs[0])));
}

bool move(Layout& layout, const Node& node, const LayoutRule* rule) {
  if (!node.op) return false;
  if (rule && has_images(layout.graph(), node, rule->images) && rule->move(layout, node)) return true;
  if (rule && (rule->begins || rule->how == How::by_element)) return false;  // these rules report the reason themselves
  return declined(node, "an operand has its channels innermost; for its operands or attributes it has no form that reads them so");
}

// Visits nodes in topological order, so that a node's operands are moved before the node.
void move_all(Rewriter& rewriter, bool weights_change) {
  Graph& graph = rewriter.graph();
  Layout layout(graph, weights_change);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.bodies.empty() || node.outputs.empty() || node.outputs[0] == kNoValue) continue;
    const LayoutRule* rule = rule_for(node);
    if ((rule && rule->begins) || layout.reads_moved(node)) rewriter.change(id, [&] { return move(layout, node, rule); });
  }
}

}  // namespace

int64_t assign_layout(Graph& graph, int64_t limit, bool weights_change) {
  const int64_t count = Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { move_all(inside, weights_change); });
  if (count == 0) return 0;
  remove_dead_nodes(graph);
  infer(graph);
  return count;
}

Pass assign_layout() {
  return graph_pass(
      "assign-layout", kLayout, {.not_before_autodiff = true, .only_in_memory = true, .for_host = true},
      "convolutions, their gradients, and what lies between them, channels innermost",
      [](Graph& graph, PassContext& context, int64_t limit) { return assign_layout(graph, limit, context.options.weights_change); });
}

}  // namespace treadle::passes
