// The pass behind assign_layout: which nodes move to channels innermost, and how. assign_layout.cpp has the walk and the convolutions,
// layout_followers.cpp what lies between them, layout_gradients.cpp what training adds.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "passes/channels_last.h"

namespace treadle::passes {

/// One walk in topological order. A node that moves leaves a Transpose back behind, which its old readers read; readers that move as well
/// read the new value, and the Transpose dies. Nodes that compute elementwise, pool, join or resize move if an operand has moved.
class LayoutPass {
 public:
  LayoutPass(Rewriter& rewriter, bool weights_change) : rewriter_(rewriter), g_(rewriter.graph()), weights_change_(weights_change) {}

  void run();

 private:
  static bool begins(const Node& node);
  bool move(const Node& node);
  /// An operand has moved; not of elementwise operators.
  bool follow(const Node& node, ChannelsLast::How how);

  /// The node under the same operator, or under the one that computes it with channels innermost.
  static NodeSpec same_operator(const Node& node);
  static NodeSpec layout_operator(const Node& node);
  bool is_image(ValueId id) const;
  bool is_byte_image(ValueId id) const;
  /// Of truth values.
  bool is_mask(ValueId id) const;
  bool is_any_image(ValueId id) const { return is_image(id) || is_byte_image(id); }
  int rank(ValueId id) const { return g_.type(id).rank(); }
  bool has_moved(ValueId id) const;
  bool reads_moved(const Node& node) const;
  void set_moved(ValueId id, ValueId moved);
  ValueId ints(const Ints& values, const std::string& name) { return g_.add_constant(name, Tensor::vector<int64_t>(values)); }
  /// Transposes, by a Reshape where only extents of 1 move.
  ValueId transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before);
  /// The value with channels innermost; made before `before` if there is none yet.
  ValueId channels_last(ValueId id, NodeId before);
  /// What read `old` reads `beside`, which is the same and takes its name.
  void take_place(ValueId old, ValueId beside);
  /// What read `old` reads `last`, which is the same with channels innermost, or a Transpose of it.
  void move_image(ValueId old, ValueId last, NodeId before);
  /// Replaces the node by one that computes its outputs with channels innermost. @return that one
  NodeId replace(const Node& node, NodeSpec spec);
  bool conv(const Node& node);
  bool quantised_conv(const Node& node);
  bool conv_transpose(const Node& node);
  bool begins_region(ValueId id) const;
  bool transpose(const Node& node);
  /// Whether the operand can follow an image of rank r.
  bool can_follow(ValueId id, int r) const;
  static bool is_one_element(const Type& type);
  ValueId followed(ValueId id, int r, NodeId before);
  bool elementwise(const Node& node);
  bool first_operand(const Node& node);
  static bool has_axis(const OpDef& op);
  /// What an integer attribute is where the node does not give it.
  static int64_t default_of(const OpDef& op, std::string_view name);
  bool along_axis(const Node& node);
  bool pool(const Node& node);
  bool global_pool(const Node& node);
  bool reduce(const Node& node);
  bool batch_norm(const Node& node);
  bool group_norm(const Node& node);
  /// A vector of one element an axis, in the new order; its elements may be computed.
  ValueId permuted_vector(ValueId id, int r, NodeId before);
  bool is_vector_of(ValueId id, int64_t length) const;
  bool is_empty_vector(ValueId id) const { return is_vector_of(id, 0); }
  bool resize(const Node& node);
  bool pad(const Node& node);
  bool slice(const Node& node);
  bool shape(const Node& node);
  bool fits_window(const Node& node, const Shape& weights) const;
  std::optional<Shape> computed_weights(ValueId id, int r) const;
  bool input_gradient(const Node& node);
  bool weights_gradient(const Node& node);
  bool batch_statistics(const Node& node);
  bool computed_affine(const Node& node);
  bool statistics_gradient(const Node& node);
  bool pool_with_places(const Node& node);
  bool window_gradient(const Node& node);

  Rewriter& rewriter_;
  Graph& g_;
  const bool weights_change_;
  std::vector<ValueId> moved_values_;                // by value: the same with channels innermost
  std::unordered_map<uint32_t, NodeId> normalized_;  // by the image: the node that keeps its statistics
};

}  // namespace treadle::passes
