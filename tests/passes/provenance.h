// Checks which original nodes each node replaces. Marks on the nodes show where this information gets lost.
#pragma once

#include <algorithm>
#include <string>

#include "graph/graph.h"

namespace treadle::testing {

inline std::string mark_of(const std::string& source) { return "mark of " + source; }

/// Gives every node, including bodies, a metadata entry for each original node that it replaces.
inline void mark_all(Graph& graph) {
  for (NodeId id : graph.order()) {
    Node& node = graph.node(id);
    if (node.sources.empty()) node.sources.push_back(node.name);
    for (const std::string& source : node.sources) node.metadata.emplace_back(mark_of(source), "kept");
    for (Body& body : node.bodies) mark_all(*body.graph);
  }
}

/// Returns the name of the first node, also in bodies, that names no node of the original graph, or names one without its mark; empty if
/// there is none.
inline std::string first_loss(const Graph& graph) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (node.sources.empty()) return describe(node) + " has no sources";
    for (const std::string& source : node.sources) {
      const bool marked =
          std::any_of(node.metadata.begin(), node.metadata.end(), [&](const auto& entry) { return entry.first == mark_of(source); });
      if (!marked) return describe(node) + " has lost the " + mark_of(source);
    }
    for (const Body& body : node.bodies)
      if (std::string loss = first_loss(*body.graph); !loss.empty()) return loss;
  }
  return {};
}

}  // namespace treadle::testing
