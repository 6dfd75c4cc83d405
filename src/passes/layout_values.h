// Tracks the values of a graph that have moved to channels-last layout, and creates the nodes that write and read them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "passes/channels_last.h"

namespace treadle::passes {

/// Return true for images, with one or two spatial axes, of float32, bytes or truth values respectively. False for kNoValue.
bool is_image(const Graph& graph, ValueId id);
bool is_byte_image(const Graph& graph, ValueId id);
bool is_mask(const Graph& graph, ValueId id);
inline bool is_any_image(const Graph& graph, ValueId id) { return is_image(graph, id) || is_byte_image(graph, id); }

/// A moved value exists twice: in channels-last layout, and in its original layout as the output of a Transpose. Moved readers use the
/// former; once all have moved, the Transpose has no reader and is removed.
class Layout {
 public:
  /// @param weights_change  the graph belongs to a training step
  Layout(Graph& graph, bool weights_change) : g_(graph), weights_change_(weights_change) {}

  Graph& graph() { return g_; }
  const Graph& graph() const { return g_; }
  bool weights_change() const { return weights_change_; }
  int rank(ValueId id) const { return g_.type(id).rank(); }

  /// True if the value exists in channels-last layout. False for kNoValue.
  bool has_moved(ValueId id) const;
  bool reads_moved(const Node& node) const;
  /// Returns the value in channels-last layout. @pre has_moved()
  ValueId moved(ValueId id) const { return moved_[index_of(id)]; }
  void set_moved(ValueId id, ValueId moved);
  /// Like moved(), but adds a Transpose before `before` if needed.
  ValueId channels_last(ValueId id, NodeId before);

  /// Replaces the node by one of `spec` with its name. The new outputs are channels-last images, or vectors as before. @return true
  bool replace(const Node& node, NodeSpec spec);
  /// Like replace(), but sets operand 0 to the node's operand 0 in channels-last layout.
  bool replace_image(const Node& node, NodeSpec spec);
  /// Makes readers of `old` read `last`, its channels-last form, or a Transpose of it.
  void move_image(ValueId old, ValueId last, NodeId before);
  /// Makes readers of `old` read `same`, which gets its name and type.
  void take_place(ValueId old, ValueId same);

  /// Adds a Transpose, or a Reshape if only extents of 1 move. @param like  names the node and its output
  ValueId transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before);
  ValueId ints(const Ints& values, const std::string& name) { return g_.add_constant(name, Tensor::vector<int64_t>(values)); }

  /// Sets and returns the node that computes the statistics of an image, for its gradient; null if there is none.
  void set_statistics(ValueId image, NodeId node) { statistics_[static_cast<uint32_t>(image)] = node; }
  const Node* statistics_of(ValueId image) const;

 private:
  Graph& g_;
  const bool weights_change_;
  std::vector<ValueId> moved_;                       // channels-last form of each value
  std::unordered_map<uint32_t, NodeId> statistics_;  // node of the statistics of each image
};

}  // namespace treadle::passes
