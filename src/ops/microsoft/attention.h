// Helpers for the attention operators of com.microsoft: heads, masks, and the Attention node that replaces them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/microsoft/microsoft.h"

namespace treadle::ops {

std::vector<OpDef> microsoft_attention_ops();
std::vector<OpDef> cache_ops();  // operators of the treadle domain

OpDef attention_op();
OpDef decoder_masked_attention_op();
OpDef group_query_attention_op();
OpDef multi_head_attention_op();
OpDef quantized_attention_op();
OpDef quantized_embed_norm_op();
OpDef rotary_op();
OpDef sparse_attention_op();
OpDef sparse_blocks_op();  // operator of the treadle domain
OpDef sectioned_rotary_op();
OpDef update_window_op();     // operator of the treadle domain
OpDef window_positions_op();  // operator of the treadle domain

/// Returns an attribute that must be positive. @throws Error(invalid_model) if it is not.
int64_t positive(const Decomposition& d, std::string_view name);
/// Rejects an attribute that is set to anything but `otherwise`. @throws Error(not_implemented) naming the attribute.
void refuse_attribute(const Decomposition& d, std::string_view name, int64_t otherwise = 0);
/// Rejects an input that is present. @throws Error(not_implemented) naming the input.
void refuse_input(const Decomposition& d, size_t i, std::string_view name);
/// Checks that inputs a and b are both present or both absent. @throws Error(invalid_model) if only one is present.
void check_together(const Decomposition& d, size_t a, size_t b, std::string_view names);

/// Returns `count` extents of x, from axis `axis` on, as an int64 vector.
ValueId extents(NodeWriter& w, ValueId x, int64_t axis, int64_t count = 1);
ValueId joined(NodeWriter& w, std::vector<ValueId> parts, int64_t axis = 0);
ValueId sliced(NodeWriter& w, ValueId x, ValueId begin, ValueId end, int64_t axis);
/// Returns the vector 0, 1, …, length - 1. `length` is a tensor of one element.
ValueId counted(NodeWriter& w, ValueId length);
ValueId integer(NodeWriter& w, int64_t number);
/// Counts the ones in each row of the mask (input number `mask`), as onnxruntime does. Returns zeros if there is no mask.
ValueId mask_index(Decomposition& d, ValueId ids, size_t mask);
/// Reshapes and transposes [batch, length, heads * size] to [batch, heads, length, size]. merge_heads() is the inverse.
ValueId split_heads(NodeWriter& w, ValueId x, int64_t heads);
ValueId merge_heads(NodeWriter& w, ValueId x);

/// Returns the position of the prompt's token number `s`. Positions count up from ids[0], or from 0 if `ids` is null. The sum may wrap
/// around; the lookup of such a position then fails with an error.
inline int64_t prompt_position(const int64_t* ids, int64_t s) {
  return static_cast<int64_t>((ids ? static_cast<uint64_t>(ids[0]) : 0) + static_cast<uint64_t>(s));
}

/// Turns a com.microsoft mask of padded keys into a bias that is added to scores [batch, heads, queries, keys]. The mask has lengths
/// [batch], or elements for each key [batch, keys], or for each query and key [batch, queries, keys]. If `starts`, it may also have lengths
/// followed by starts [2 * batch], or the shape [batch, 1, max, max].
ValueId padding_mask(Decomposition& d, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name);
/// Returns the sum of two masks. If one is absent, returns the other one, which may be absent too.
ValueId both(NodeWriter& w, ValueId a, ValueId b);

/// Which scores the output qk_matmul_output has, that is, after which step. The numbers are those of ONNX's qk_matmul_output_mode.
enum class Shown : int64_t { capped = 1, biased = 2, probabilities = 3 };

/// Returns the attributes `scale` and `softcap` for ONNX's Attention, if the node sets them.
Attributes attention_attributes(const Decomposition& d);

/// Adds the nodes of com.microsoft's Attention that follow `qkv`, the product of input and weights: queries, keys and values.
void give_self_attention(Decomposition& d, ValueId qkv, size_t mask, size_t past, size_t attention_bias);

/// Decomposes com.microsoft's LinearAttention.
void decompose_linear_attention(Graph& graph, NodeId id);

}  // namespace treadle::ops
