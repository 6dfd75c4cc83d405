// What FusedAttention and its gradient have in common: how their operands lie.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/gradient.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/attention/attention.h"

namespace treadle::ops {

inline constexpr std::string_view kAttentionLayouts[] = {"q_layout", "k_layout", "v_layout"};
inline constexpr std::string_view kAttentionParts[] = {"q_part", "k_part", "v_part"};

/// Attributes of both: scale, mask, layouts and parts.
std::vector<AttributeDef> attention_attributes();

/// How the axes of Q, K, V (0, 1, 2) lie. @throws Error(invalid_model) for a layout that there is not
int64_t attention_layout(const Attributes& attributes, int operand);
/// The extents of an operand in the order batch, heads, length, size. @throws Error(invalid_argument) for another rank than its layout's
SymbolicShape attention_heads(const SymbolicShape& shape, const Attributes& attributes, int operand);
/// Strides of an array in layout 0 or 1. @param heads  its extents as batch, heads, length, size
kernels::HeadStrides attention_strides(const Shape& heads, int64_t layout);

/// A call as its inputs' extents and the attributes describe it.
struct AttentionCall {
  kernels::AttentionParams params;
  int64_t q = 0, k = 0, v = 0;  ///< offsets of the parts in their operands, in elements
  bool is_boolean = false, has_mask = false;
  int max_threads = 1;

  /// @param first  the input that is Q; K, V and the mask follow. @param may_stretch  whether a mask may have more batches, heads or rows
  /// than the scores where those have one. @throws Error(invalid_argument) for extents that do not fit each other
  static AttentionCall bind(const BindContext& c, int first, bool may_stretch = false);
  /// Whether there are heads at all.
  bool any() const { return params.q_heads > 0 || params.kv_heads > 0; }
  kernels::AttentionData<float> data(RunContext& c, int first) const;

 private:
  void bind_mask(const Shape& mask, bool may_stretch);
  void stretch(int axis, int64_t extent);
};

/// The rule of FusedAttention: one FusedAttentionGrad.
std::vector<ValueId> fused_attention_gradient(GradientContext& g);
OpDef fused_attention_gradient_op();

}  // namespace treadle::ops
