// Passes change a graph through a Rewriter. It descends into bodies, counts changes up to a limit (to bisect a fault), and preserves names
// of values as well as sources and metadata of nodes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// The nodes of the original model for which a node stands, and their metadata_props (marks such as treadle.recompute).
struct Provenance {
  std::vector<std::string> sources;
  Properties metadata;

  /// Adds the entries of `node`. If a key exists already, its present value stays.
  void merge(const Node& node);
  void merge_metadata(const Properties& more);
};

class Rewriter {
 public:
  explicit Rewriter(Graph& graph, int64_t limit = INT64_MAX) : graph_(graph), limit_(limit) {}
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  Graph& graph() const { return graph_; }
  int64_t count() const { return count_; }
  bool is_at_limit() const { return count_ >= limit_; }

  /// Calls pass(Rewriter&) for the bodies of each node.
  template <typename Fn>
  void for_each_body(Fn&& pass) {
    std::vector<NodeId> with_bodies;  // empty in most graphs
    for (NodeId id = graph_.first(); id != kNoNode; id = graph_.next(id))
      if (!graph_.node(id).bodies.empty()) with_bodies.push_back(id);
    for (NodeId id : with_bodies) for_each_body(id, pass);
  }
  template <typename Fn>
  void for_each_body(NodeId id, Fn&& pass) {
    if (!graph_.is_alive(id)) return;
    for (Body& body : graph_.node(id).bodies) {
      Rewriter inside(*body.graph, limit_ - count_);
      pass(inside);
      count_ += inside.count_;
    }
  }

  /// Calls pass(Rewriter&) for this graph, then for all bodies within it. @return count()
  template <typename Fn>
  int64_t for_each_graph(const Fn& pass) {
    pass(*this);
    for_each_body([&](Rewriter& inside) { inside.for_each_graph(pass); });
    return count_;
  }
  /// Like for_each_graph(), but visits bodies before the graph that contains them.
  template <typename Fn>
  int64_t for_each_graph_inside_out(const Fn& pass) {
    for_each_body([&](Rewriter& inside) { inside.for_each_graph_inside_out(pass); });
    pass(*this);
    return count_;
  }

  /// Makes one change, by calling edit(). Nodes that edit() adds stand for the nodes `origins`, which it may remove. edit() returns false
  /// if it has changed nothing. Does nothing once the limit is reached.
  template <typename Fn>
  bool change(std::span<const NodeId> origins, Fn&& edit) {
    if (is_at_limit()) return false;
    const Mark mark = begin(origins);
    const bool changed = edit();
    end(mark);
    count_ += changed ? 1 : 0;
    return changed;
  }
  template <typename Fn>
  bool change(NodeId origin, Fn&& edit) {
    return change(std::span(&origin, 1), edit);
  }
  /// Like the other change(), for an edit() that adds no nodes or records the sources of the added nodes itself.
  template <typename Fn>
  bool change(Fn&& edit) {
    return change(std::span<const NodeId>(), edit);
  }

  /// Adds a node in front of `before` (kNoNode: at the end), infers its type and returns its first output.
  ValueId add(NodeSpec spec, NodeId before);
  /// Makes the readers of `old` read `with`, which gets the name of `old`. The producer of `old` may have been removed before.
  void replace(ValueId old, ValueId with);
  /// Records that the node now also does the work of the node `gone`, which has been or will be removed.
  void stand_for(NodeId id, NodeId gone);
  /// Makes the node replace `gone`: the node gets the readers and the name of its output, its sources and its metadata. Removes `gone`.
  /// @pre only `gone` reads the node's first output
  void absorb(NodeId id, NodeId gone);

 private:
  struct Mark {
    size_t first_node;  // nodes with this index or a higher one are new
    Provenance stands_for;
  };
  Mark begin(std::span<const NodeId> origins) const;
  void end(const Mark& mark);

  Graph& graph_;
  int64_t limit_, count_ = 0;
};

}  // namespace treadle
