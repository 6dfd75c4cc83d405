#include "graph/rewriter.h"

#include <algorithm>

#include "graph/infer.h"

namespace treadle {

void Provenance::merge_metadata(const Properties& more) {
  if (metadata.empty()) metadata = more;
  if (metadata.shares_with(more)) return;
  for (const auto& entry : more) {
    const bool known = std::any_of(metadata.begin(), metadata.end(), [&](const auto& have) { return have.first == entry.first; });
    if (!known) metadata.push_back(entry);
  }
}

void Provenance::merge(const Node& node) {
  sources.insert(sources.end(), node.sources.begin(), node.sources.end());
  merge_metadata(node.metadata);
}

Rewriter::Mark Rewriter::begin(std::span<const NodeId> origins) const {
  Mark mark{graph_.node_capacity(), {}};
  for (NodeId id : origins) mark.stands_for.merge(graph_.node(id));
  return mark;
}

void Rewriter::end(const Mark& mark) {
  for (size_t i = mark.first_node; i < graph_.node_capacity(); ++i) {
    const NodeId id{static_cast<uint32_t>(i)};
    if (!graph_.is_alive(id)) continue;
    Node& node = graph_.node(id);
    if (node.sources.empty()) node.sources = mark.stands_for.sources;
    if (node.metadata.empty()) node.metadata = mark.stands_for.metadata;
  }
}

ValueId Rewriter::add(NodeSpec spec, NodeId before) {
  const NodeId id = graph_.add_node(std::move(spec), before);
  infer_node(graph_, id);
  return graph_.node(id).outputs[0];
}

void Rewriter::replace(ValueId old, ValueId with) {
  graph_.replace_uses(old, with);
  const std::string name = graph_.value(old).name;
  graph_.rename_value(old, name + "/replaced");
  graph_.rename_value(with, name);
}

void Rewriter::stand_for(NodeId id, NodeId gone) {
  Node& node = graph_.node(id);
  Provenance both{std::move(node.sources), std::move(node.metadata)};
  both.merge(graph_.node(gone));
  node.sources = std::move(both.sources);
  node.metadata = std::move(both.metadata);
}

void Rewriter::absorb(NodeId id, NodeId gone) {
  const ValueId y = graph_.node(id).outputs[0], out = graph_.node(gone).outputs[0];
  stand_for(id, gone);
  replace(out, y);
  graph_.remove_node(gone);
}

}  // namespace treadle
