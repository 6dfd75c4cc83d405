// NhwcConv(Transpose(x)) -> NhwcConv(x, planes = 1), if x is an input of the model with few channels. The kernel copies the image in any
// case, to pad it, and transposes it while copying.
#include "graph/rewriter.h"
#include "passes/channels_last.h"
#include "passes/layout.h"
#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

bool has_few_channels(const Type& type) {
  return type.has_rank() && type.rank() >= 3 && (*type.shape)[1].is_const() && (*type.shape)[1].value() <= kFewChannels;
}

bool is_padded(const Node& conv) {
  for (int64_t pad : conv.attributes.get_ints("pads"))
    if (pad > 0) return true;
  return false;
}

int64_t read_inputs_as_planes(Graph& graph, PassContext&, int64_t limit) {
  Rewriter rewriter(graph, limit);
  for (NodeId id : graph.order()) {
    if (rewriter.is_at_limit()) break;
    const Node& conv = graph.node(id);
    if (!conv.is("NhwcConv", "treadle") || conv.attributes.get_int("group", 1) != 1 || !is_padded(conv) ||
        !is_stored(graph, conv.inputs[1]))
      continue;
    const ValueId image = conv.inputs[0];
    const Node* transpose = producer_of(graph, image);
    if (!transpose || !is_used_once(graph, image)) continue;
    const ValueId input = transpose->inputs[0];
    const Type& type = graph.type(input);
    // x must be an input of the model, which is contiguous. The planner may store a computed value between rows of others.
    if (graph.value(input).producer != kNoNode || graph.value(input).is_constant() || !has_few_channels(type) ||
        !has_perm(transpose, channels_last_order(type.rank())))
      continue;
    const NodeId moved = transpose->id;
    rewriter.change(id, [&] {
      rewriter.stand_for(id, moved);
      graph.set_input(id, 0, input);
      graph.node(id).attributes.set("planes", int64_t{1});
      graph.remove_node(moved);
      return true;
    });
  }
  return rewriter.count();
}

}  // namespace

Pass read_planes() {
  return graph_pass("read-planes", kLayout, kPackedFloat32, "a NhwcConv of few channels reads the model's input with channels second",
                    read_inputs_as_planes);
}

}  // namespace treadle::passes
