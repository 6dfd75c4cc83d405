// The values of a graph that have moved to channels innermost, and how nodes come to make and to read them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "passes/channels_last.h"

namespace treadle::passes {

/// True for images, of one or two spatial axes: of float32, of bytes, of truth values. False for kNoValue.
bool is_image(const Graph& graph, ValueId id);
bool is_byte_image(const Graph& graph, ValueId id);
bool is_mask(const Graph& graph, ValueId id);
inline bool is_any_image(const Graph& graph, ValueId id) { return is_image(graph, id) || is_byte_image(graph, id); }

/// A value that has moved is there twice: as it was, made by a Transpose, and with channels innermost. Readers that move as well read the
/// second; once all have moved, nobody reads the Transpose, and it dies.
class Layout {
 public:
  /// @param weights_change  the graph is one of a training step
  Layout(Graph& graph, bool weights_change) : g_(graph), weights_change_(weights_change) {}

  Graph& graph() { return g_; }
  const Graph& graph() const { return g_; }
  bool weights_change() const { return weights_change_; }
  int rank(ValueId id) const { return g_.type(id).rank(); }

  /// False for kNoValue.
  bool has_moved(ValueId id) const;
  bool reads_moved(const Node& node) const;
  /// The value with channels innermost. @pre has_moved()
  ValueId moved(ValueId id) const { return moved_[index_of(id)]; }
  void set_moved(ValueId id, ValueId moved);
  /// As moved(); a Transpose before `before` makes it if there is none yet.
  ValueId channels_last(ValueId id, NodeId before);

  /// Puts a node of `spec` in the place of the node. Its outputs are the images with channels innermost, and vectors as they are. It has
  /// the node's name. @return true
  bool replace(const Node& node, NodeSpec spec);
  /// As replace(), with operand 0 of the node, channels innermost, for operand 0.
  bool replace_image(const Node& node, NodeSpec spec);
  /// Readers of `old` read `last`, which is the same with channels innermost, or a Transpose of it.
  void move_image(ValueId old, ValueId last, NodeId before);
  /// Readers of `old` read `same`, which takes its name and type.
  void take_place(ValueId old, ValueId same);

  /// Transposes, by a Reshape where only extents of 1 move. @param like  gives the name of the node, and of its output
  ValueId transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before);
  ValueId ints(const Ints& values, const std::string& name) { return g_.add_constant(name, Tensor::vector<int64_t>(values)); }

  /// The node that computes the statistics of an image, for its gradient; null if there is none.
  void set_statistics(ValueId image, NodeId node) { statistics_[static_cast<uint32_t>(image)] = node; }
  const Node* statistics_of(ValueId image) const;

 private:
  Graph& g_;
  const bool weights_change_;
  std::vector<ValueId> moved_;                       // by value
  std::unordered_map<uint32_t, NodeId> statistics_;  // by the image
};

}  // namespace treadle::passes
