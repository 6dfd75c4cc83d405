// Implements Attention of com.microsoft, which first multiplies its input by the weights for queries, keys and values, and QAttention, its
// form with quantized operands.
#include <algorithm>

#include "ops/microsoft/attention.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

/// Returns the keys (i = 0) or the values (i = 1) from a past [2, batch, heads, length, size] of com.microsoft.
ValueId half_of(Decomposition& d, ValueId past, int64_t i) {
  return past == kNoValue ? kNoValue : d.op("Gather", {past, integer(d, i)}, {{"axis", int64_t{0}}});
}

void check_hidden_sizes(const std::vector<int64_t>& sizes, int64_t heads) {
  if (sizes.size() != 3 || sizes[0] != sizes[1])
    throw Error(ErrorCode::invalid_model, fmt::format("qkv_hidden_sizes has {} elements; it needs 3, the first two equal", sizes.size()));
  for (int64_t size : sizes)
    if (size < 1 || size % heads != 0)
      throw Error(ErrorCode::invalid_model, fmt::format("qkv_hidden_sizes contains {}, which {} heads cannot share", size, heads));
}

void decompose_attention(Graph& graph, NodeId id) {
  enum Input : size_t { kInput, kWeights, kBias, kMask, kPast, kAttentionBias, kPastLength };
  Decomposition d(graph, id);
  refuse_attribute(d, "do_rotary"), refuse_attribute(d, "past_present_share_buffer");
  refuse_input(d, kPastLength, "past_sequence_length");
  ValueId qkv = d.op("MatMul", {d.in(kInput), d.in(kWeights)});
  if (d.has(kBias)) qkv = d.op("Add", {qkv, d.in(kBias)});
  give_self_attention(d, qkv, kMask, kPast, kAttentionBias);
}

void decompose_quantized_attention(Graph& graph, NodeId id) {
  enum Input : size_t { kInput, kWeights, kBias, kInputScale, kWeightScale, kMask, kInputZero, kWeightZero, kPast, kNone };
  Decomposition d(graph, id);
  refuse_attribute(d, "do_rotary"), refuse_attribute(d, "past_present_share_buffer");
  ValueId sums = d.cast(d.op("MatMulInteger", {d.in(kInput), d.in(kWeights), d.in(kInputZero), d.in(kWeightZero)}), DType::float32);
  ValueId qkv = d.op("Mul", {sums, d.op("Mul", {d.in(kInputScale), d.in(kWeightScale)})});
  give_self_attention(d, d.op("Add", {qkv, d.in(kBias)}), kMask, kPast, kNone);
}

}  // namespace

void give_self_attention(Decomposition& d, ValueId qkv, size_t mask_input, size_t past_input, size_t bias_input) {
  if (d.rank(d.in(0)) < 0) qkv = with_rank(d, qkv, 3);
  const int64_t heads = positive(d, "num_heads");
  std::vector<ValueId> parts;
  if (const auto& sizes = d.attributes().get_ints("qkv_hidden_sizes"); !sizes.empty()) {
    check_hidden_sizes(sizes, heads);
    parts = d.op_n("Split", {qkv, d.ints(sizes)}, 3, {{"axis", int64_t{2}}});
  } else {
    ValueId size = d.op("Div", {extents(d, qkv, 2), d.ints({3})});
    parts = d.op_n("Split", {qkv, d.op("Mul", {size, d.ints({1, 1, 1})})}, 3, {{"axis", int64_t{2}}});
  }
  ValueId past = d.in(past_input), num_keys = extents(d, qkv, 1), mask = kNoValue;
  if (past != kNoValue) num_keys = d.op("Add", {num_keys, extents(d, past, 3)});
  if (d.has(mask_input)) mask = padding_mask(d, d.in(mask_input), qkv, num_keys, true, "mask_index");
  mask = both(d, mask, d.in(bias_input));
  Attributes attributes = attention_attributes(d);
  attributes.set("is_causal", static_cast<int64_t>(d.attributes().get_int("unidirectional", 0) != 0));
  attributes.set("q_num_heads", heads), attributes.set("kv_num_heads", heads);
  auto outputs =
      d.op_n("Attention", {parts[0], parts[1], parts[2], mask, half_of(d, past, 0), half_of(d, past, 1)}, d.wants(1) ? 3 : 1, attributes);
  d.give(0, outputs[0]);
  if (d.wants(1)) {
    auto row = [&](ValueId x) { return d.op("Unsqueeze", {x, d.ints({0})}); };
    d.give(1, joined(d, {row(outputs[1]), row(outputs[2])}));
  }
  d.finish();
}

OpDef attention_op() {
  constexpr TypeSet kInt32{DType::int32};
  return op("Attention",
            {{"input", kFloats, "T"},
             {"weights", kFloats, "T"},
             maybe("bias", kFloats, "T"),
             maybe("mask_index", kInt32),
             maybe("past", kFloats, "T"),
             maybe("attention_bias", kFloats, "T"),
             maybe("past_sequence_length", kInt32)},
            {{"output", kFloats, "T"}, maybe("present", kFloats, "T")},
            {{"do_rotary", int64_t{0}},
             {"mask_filter_value"},
             {"num_heads", AttributeDef::Required{}},
             {"past_present_share_buffer", int64_t{0}},
             {"qkv_hidden_sizes"},
             {"rotary_embedding_dim"},
             {"scale"},
             {"unidirectional", int64_t{0}}},
            decompose_attention);
}

OpDef quantized_attention_op() {
  constexpr TypeSet kInt32{DType::int32}, kBytes{DType::uint8, DType::int8};
  return op("QAttention",
            {{"input", kBytes, "T1"},
             {"weight", kBytes, "T2"},
             {"bias", kFloats, "T3"},
             {"input_scale", kFloats, "T3"},
             {"weight_scale", kFloats, "T3"},
             maybe("mask_index", kInt32),
             maybe("input_zero_point", kBytes, "T1"),
             maybe("weight_zero_point", kBytes, "T2"),
             maybe("past", kFloats, "T3")},
            {{"output", kFloats, "T3"}, maybe("present", kFloats, "T3")},
            {{"do_rotary", int64_t{0}},
             {"mask_filter_value"},
             {"num_heads", AttributeDef::Required{}},
             {"past_present_share_buffer", int64_t{0}},
             {"scale"},
             {"unidirectional", int64_t{0}}},
            decompose_quantized_attention);
}

}  // namespace treadle::ops
