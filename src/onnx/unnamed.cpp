#include "onnx/unnamed.h"

#include <unordered_set>

namespace treadle::onnx {
namespace {

template <typename AnyGraph, typename Fn>
void visit_nodes(AnyGraph& graph, const Fn& fn) {
  for (auto& node : graph.nodes) {
    fn(node);
    for (auto& attribute : node.attributes)
      if (attribute.g) visit_nodes(*attribute.g, fn);
  }
}

}  // namespace

void remove_made_names(GraphDef& exported, const GraphDef& original) {
  std::unordered_set<std::string> given;
  visit_nodes(original, [&](const NodeDef& node) { given.insert(node.name); });
  visit_nodes(exported, [&](NodeDef& node) {
    if (!node.outputs.empty() && node.name == node.outputs[0] && !given.contains(node.name)) node.name.clear();
  });
}

}  // namespace treadle::onnx
