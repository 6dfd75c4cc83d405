// Helpers for the attention operators of com.microsoft: heads, masks, and the node that computes.
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

/// Returns an attribute. @throws Error(invalid_model) if it is not positive.
int64_t positive(const Decomposition& d, std::string_view name);
/// Refuses an attribute. @throws Error(not_implemented) naming the attribute if it is set to anything but `otherwise`.
void refuse_attribute(const Decomposition& d, std::string_view name, int64_t otherwise = 0);
/// Refuses an input. @throws Error(not_implemented) naming the input if it is present.
void refuse_input(const Decomposition& d, size_t i, std::string_view name);
/// Checks that both inputs are present or absent. @throws Error(invalid_model) if only one of them is present.
void check_together(const Decomposition& d, size_t a, size_t b, std::string_view names);

/// Returns elements [axis, axis + count) of x's shape, as int64.
ValueId extents(NodeWriter& w, ValueId x, int64_t axis, int64_t count = 1);
ValueId joined(NodeWriter& w, std::vector<ValueId> parts, int64_t axis = 0);
ValueId sliced(NodeWriter& w, ValueId x, ValueId begin, ValueId end, int64_t axis);
/// Returns 0, 1, …, length - 1. `length` has one element.
ValueId counted(NodeWriter& w, ValueId length);
ValueId integer(NodeWriter& w, int64_t number);
/// Returns the number of ones in each row of the operand `mask`, as onnxruntime computes it; zeros if it is absent.
ValueId mask_index(Decomposition& d, ValueId ids, size_t mask);
/// split_heads turns [batch, length, heads * size] into [batch, heads, length, size]; merge_heads is its inverse.
ValueId split_heads(NodeWriter& w, ValueId x, int64_t heads);
ValueId merge_heads(NodeWriter& w, ValueId x);

/// Returns the position of a prompt's token `s`: positions count up from ids[0], or from 0 if `ids` is null. The sum may wrap around; then
/// looking up the position fails.
inline int64_t prompt_position(const int64_t* ids, int64_t s) {
  return static_cast<int64_t>((ids ? static_cast<uint64_t>(ids[0]) : 0) + static_cast<uint64_t>(s));
}

/// Turns com.microsoft's masks of padded keys into a bias for scores [batch, heads, queries, keys]. The mask contains lengths [batch], or
/// one element for each key [batch, keys], or for each query and key [batch, queries, keys]. With `starts` it may also contain lengths
/// followed by starts [2 * batch], or be [batch, 1, max, max].
ValueId padding_mask(Decomposition& d, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name);
/// Returns the sum of two masks. Either or both may be absent.
ValueId both(NodeWriter& w, ValueId a, ValueId b);

/// Selects the scores in the output qk_matmul_output. The values are those of ONNX's qk_matmul_output_mode.
enum class Shown : int64_t { capped = 1, biased = 2, probabilities = 3 };

/// Returns attributes for ONNX's Attention: `scale`, if the node sets one, and `softcap`.
Attributes attention_attributes(const Decomposition& d);

/// Completes com.microsoft's Attention from `qkv`, the product of input and weights: queries, keys and values.
void give_self_attention(Decomposition& d, ValueId qkv, size_t mask, size_t past, size_t attention_bias);

/// Decomposes com.microsoft's LinearAttention.
void decompose_linear_attention(Graph& graph, NodeId id);

}  // namespace treadle::ops
