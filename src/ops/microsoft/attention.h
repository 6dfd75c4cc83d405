// What the attention operators of com.microsoft share: heads, masks, and the node that computes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/microsoft/microsoft.h"

namespace treadle::ops {

std::vector<OpDef> microsoft_attention_ops();
std::vector<OpDef> cache_ops();  // of the domain treadle

OpDef attention_op();
OpDef decoder_masked_attention_op();
OpDef group_query_attention_op();
OpDef multi_head_attention_op();
OpDef quantized_attention_op();
OpDef quantized_embed_norm_op();
OpDef rotary_op();
OpDef sparse_attention_op();
OpDef sparse_blocks_op();  // of the domain treadle
OpDef sectioned_rotary_op();
OpDef update_window_op();     // of the domain treadle
OpDef window_positions_op();  // likewise

/// An attribute that must be positive.
int64_t positive(const Decomposition& d, std::string_view name);
/// @throws Error(not_implemented) naming the attribute if it is set to anything but `otherwise`.
void refuse_attribute(const Decomposition& d, std::string_view name, int64_t otherwise = 0);
/// @throws Error(not_implemented) naming the input if it is there.
void refuse_input(const Decomposition& d, size_t i, std::string_view name);
/// @throws Error(invalid_model) unless both inputs are there, or neither.
void check_together(const Decomposition& d, size_t a, size_t b, std::string_view names);

/// Elements [axis, axis + count) of the shape, as int64.
ValueId extents(NodeWriter& w, ValueId x, int64_t axis, int64_t count = 1);
ValueId joined(NodeWriter& w, std::vector<ValueId> parts, int64_t axis = 0);
ValueId sliced(NodeWriter& w, ValueId x, ValueId begin, ValueId end, int64_t axis);
/// 0, 1, … as many as `length`, of one element, says.
ValueId counted(NodeWriter& w, ValueId length);
ValueId integer(NodeWriter& w, int64_t number);
/// How many elements of each row of the operand `mask` are 1, as in onnxruntime; zeros if it is absent.
ValueId mask_index(Decomposition& d, ValueId ids, size_t mask);
/// [batch, length, heads * size] as [batch, heads, length, size], and back.
ValueId split_heads(NodeWriter& w, ValueId x, int64_t heads);
ValueId merge_heads(NodeWriter& w, ValueId x);

/// The position of a prompt's token `s`: they follow the first one of `ids`, which may be null. Those that wrap are refused where they are
/// looked up.
inline int64_t prompt_position(const int64_t* ids, int64_t s) {
  return static_cast<int64_t>((ids ? static_cast<uint64_t>(ids[0]) : 0) + static_cast<uint64_t>(s));
}

/// The mask of padded keys that com.microsoft describes as lengths [batch] (with starts behind them, if `starts`), or by an element per key
/// [batch, keys] or per query and key [batch, queries, keys] or, if `starts`, [batch, 1, most, most], as something to add to scores [batch,
/// heads, queries, keys].
ValueId padding_mask(Decomposition& d, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name);
/// The sum of two masks, each of which may be absent.
ValueId both(NodeWriter& w, ValueId a, ValueId b);

/// What ONNX's Attention shows of the scores: its qk_matmul_output_mode.
enum class Shown : int64_t { capped = 1, biased = 2, probabilities = 3 };

/// Attributes of ONNX's Attention: the scale, where the node sets one, and the softcap.
Attributes attention_attributes(const Decomposition& d);

/// Queries, keys and values of com.microsoft's Attention: the input's product with the weights.
void give_self_attention(Decomposition& d, ValueId qkv, size_t mask, size_t past, size_t attention_bias);

/// LinearAttention's.
void decompose_linear_attention(Graph& graph, NodeId id);

}  // namespace treadle::ops
