// Tracks which values of a graph have been moved to channels-last layout, and creates the nodes that write and read them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "passes/channels_last.h"

namespace treadle::passes {

/// Return true for images with one or two spatial axes, whose elements are float32, bytes or truth values respectively. False for kNoValue.
bool is_image(const Graph& graph, ValueId id);
bool is_byte_image(const Graph& graph, ValueId id);
bool is_mask(const Graph& graph, ValueId id);
inline bool is_any_image(const Graph& graph, ValueId id) { return is_image(graph, id) || is_byte_image(graph, id); }

/// A moved value exists in two forms: in channels-last layout, and in its original layout as the output of a Transpose. Moved readers use
/// the channels-last form. Once all readers have been moved, nothing reads the Transpose, and it is removed.
class Layout {
 public:
  /// @param weights_change  true if the graph belongs to a training step
  Layout(Graph& graph, bool weights_change) : g_(graph), weights_change_(weights_change) {}

  Graph& graph() { return g_; }
  const Graph& graph() const { return g_; }
  bool weights_change() const { return weights_change_; }
  int rank(ValueId id) const { return g_.type(id).rank(); }

  /// Returns true if the value exists in channels-last layout. False for kNoValue.
  bool has_moved(ValueId id) const;
  bool reads_moved(const Node& node) const;
  /// Returns the channels-last form of the value. @pre has_moved()
  ValueId moved(ValueId id) const { return moved_[index_of(id)]; }
  void set_moved(ValueId id, ValueId moved);
  /// Returns the channels-last form of the value. If there is none, adds a Transpose before the node `before`.
  ValueId channels_last(ValueId id, NodeId before);

  /// Replaces the node by one node, given by `spec`, with its name. Images among the new outputs are in channels-last layout. @return true
  bool replace(const Node& node, NodeSpec spec);
  /// Like replace(), but operand 0 of the new node is the channels-last form of the old node's operand 0.
  bool replace_image(const Node& node, NodeSpec spec);
  /// Makes readers of `old` read `last`, which is its channels-last form, or a Transpose of `last`.
  void move_image(ValueId old, ValueId last, NodeId before);
  /// Makes readers of `old` read `same`, which gets the name and type of `old`.
  void take_place(ValueId old, ValueId same);

  /// Adds a Transpose, or a Reshape if only axes of extent 1 change places. @param like  gives the names of the node and its output
  ValueId transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before);
  ValueId ints(const Ints& values, const std::string& name) { return g_.add_constant(name, Tensor::vector<int64_t>(values)); }

  /// set_statistics() records the node that computes the statistics of an image; statistics_of() returns it, or null if there is none.
  void set_statistics(ValueId image, NodeId node) { statistics_[static_cast<uint32_t>(image)] = node; }
  const Node* statistics_of(ValueId image) const;

 private:
  Graph& g_;
  const bool weights_change_;
  std::vector<ValueId> moved_;                       // channels-last form of each value
  std::unordered_map<uint32_t, NodeId> statistics_;  // for each image, the node that computes its statistics
};

}  // namespace treadle::passes
