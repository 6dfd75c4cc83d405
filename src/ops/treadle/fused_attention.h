// Helpers for FusedAttention and its gradient: the layouts of operands.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/gradient.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_gradient.h"

namespace treadle::ops {

inline constexpr std::string_view kAttentionLayouts[] = {"q_layout", "k_layout", "v_layout"};
inline constexpr std::string_view kAttentionParts[] = {"q_part", "k_part", "v_part"};

/// Returns the attributes of both operators: scale, mask, layouts and parts.
std::vector<AttributeDef> attention_attributes();

/// Returns the layout of Q, K or V (operand 0, 1 or 2). @throws Error(invalid_model) if it does not exist
int64_t attention_layout(const Attributes& attributes, int operand);
/// Returns the extents of an operand, ordered as batch, heads, length, size. @throws Error(invalid_argument) if its layout has another rank
SymbolicShape attention_heads(const SymbolicShape& shape, const Attributes& attributes, int operand);
/// Returns the strides of an array in layout 0 or 1. @param heads  its extents, ordered as batch, heads, length, size
kernels::HeadStrides attention_strides(const Shape& heads, int64_t layout);

/// A call of attention, as described by attributes and input shapes.
struct AttentionCall {
  kernels::AttentionParams params;
  int64_t q = 0, k = 0, v = 0;  ///< offset of each operand's part in its input, in elements
  bool is_boolean = false, has_mask = false;
  int max_threads = 1;

  /// @param first  index of input Q, which K, V and the mask follow
  /// @param may_stretch  the mask may have more batches, heads or rows than scores where these have one
  /// @throws Error(invalid_argument) if extents do not fit
  static AttentionCall bind(const BindContext& c, int first, bool may_stretch = false);
  /// Returns true if there are heads.
  bool any() const { return params.q_heads > 0 || params.kv_heads > 0; }
  kernels::AttentionData<float> data(RunContext& c, int first) const;

 private:
  void bind_mask(const Shape& mask, bool may_stretch);
  void stretch(int axis, int64_t extent);
};

/// A call of the gradient. Its operands follow dY, input 0.
struct AttentionGradientCall {
  AttentionCall call;
  kernels::AttentionGradientParams params;
  bool joined = false;        ///< Q, K and V are parts 0, 1 and 2 of one input; outputs are its whole gradient and dScores
  bool shows_scores = false;  ///< there is an output dScores, the last one

  /// @throws Error(invalid_argument) if extents do not fit
  static AttentionGradientCall bind(const BindContext& c);
};

/// The gradient rule of FusedAttention: adds one FusedAttentionGrad.
std::vector<ValueId> fused_attention_gradient(GradientContext& g);
OpDef fused_attention_gradient_op();

}  // namespace treadle::ops
