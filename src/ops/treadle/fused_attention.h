// Helpers for FusedAttention and its gradient, about the layouts of operands.
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

/// Returns the attributes that FusedAttention and its gradient have in common: scale, mask, layouts and parts.
std::vector<AttributeDef> attention_attributes();

/// Returns the layout of operand 0, 1 or 2 (Q, K or V). @throws Error(invalid_model) if the attribute has an unknown number
int64_t attention_layout(const Attributes& attributes, int operand);
/// Returns the extents of an operand in the order batch, heads, length, size. @throws Error(invalid_argument) if the layout needs another
/// rank
SymbolicShape attention_heads(const SymbolicShape& shape, const Attributes& attributes, int operand);
/// Returns the strides of a tensor in layout 0 or 1. @param heads  its extents in the order batch, heads, length, size
kernels::HeadStrides attention_strides(const Shape& heads, int64_t layout);

/// The parameters of the attention kernel for a node, from its attributes and input shapes.
struct AttentionCall {
  kernels::AttentionParams params;
  int64_t q = 0, k = 0, v = 0;  ///< offset of each operand in its input, in elements; not 0 for parts of a tensor
  bool is_boolean = false, has_mask = false;
  int max_threads = 1;

  /// @param first  index of the input Q, which is followed by K, V and the mask
  /// @param may_stretch  the mask may have more batches, heads or rows than the scores, where these have one
  /// @throws Error(invalid_argument) if extents are inconsistent
  static AttentionCall bind(const BindContext& c, int first, bool may_stretch = false);
  /// Returns true if there are heads, so that there is something to compute.
  bool any() const { return params.q_heads > 0 || params.kv_heads > 0; }
  kernels::AttentionData<float> data(RunContext& c, int first) const;

 private:
  void bind_mask(const Shape& mask, bool may_stretch);
  void stretch(int axis, int64_t extent);
};

/// The parameters of the gradient kernel. The operands of attention follow input 0, which is dY.
struct AttentionGradientCall {
  AttentionCall call;
  kernels::AttentionGradientParams params;
  bool joined = false;        ///< Q, K and V are parts 0 to 2 of one input; the outputs are its gradient and dScores
  bool shows_scores = false;  ///< the last output is dScores

  /// @throws Error(invalid_argument) if extents are inconsistent
  static AttentionGradientCall bind(const BindContext& c);
};

/// The gradient rule of FusedAttention. It adds one FusedAttentionGrad.
std::vector<ValueId> fused_attention_gradient(GradientContext& g);
OpDef fused_attention_gradient_op();

}  // namespace treadle::ops
