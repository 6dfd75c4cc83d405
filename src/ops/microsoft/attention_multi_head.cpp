// MultiHeadAttention and DecoderMaskedMultiHeadAttention.
#include <limits>

#include "ops/microsoft/attention.h"

namespace treadle::ops {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

/// Part `i` of x [batch, length, heads, parts, size], as [batch, length, heads * size].
std::vector<ValueId> unpacked(Decomposition& d, ValueId x, int count) {
  auto parts = d.op_n("Split", {x}, count, {{"axis", int64_t{3}}, {"num_outputs", int64_t{count}}});
  for (ValueId& part : parts) part = d.op("Reshape", {part, d.ints({0, 0, -1})});
  return parts;
}

struct Projections {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
  bool heads_apart = false;  ///< keys and values are [batch, heads, length, size] already
};

Projections projections(Decomposition& d) {
  const int rank = known_rank(d, d.in(0), "query");
  if (!d.has(1)) {
    if (rank != 5 || d.has(2))
      throw Error(ErrorCode::invalid_model, fmt::format("without key there is no value, and query is of rank 5; it is of rank {}", rank));
    auto parts = unpacked(d, d.in(0), 3);
    return {parts[0], parts[1], parts[2]};
  }
  const int key_rank = known_rank(d, d.in(1), "key");
  if (rank != 3) throw Error(ErrorCode::invalid_model, fmt::format("query is of rank {}, not 3, beside a key", rank));
  if (key_rank == 5) {
    if (d.has(2)) throw Error(ErrorCode::invalid_model, "a key of rank 5 holds the values; there can be no value");
    auto parts = unpacked(d, d.in(1), 2);
    return {d.in(0), parts[0], parts[1]};
  }
  if (!d.has(2)) throw Error(ErrorCode::invalid_model, fmt::format("value is missing beside a key of rank {}", key_rank));
  const int value_rank = known_rank(d, d.in(2), "value");
  if (value_rank != key_rank || (key_rank != 3 && key_rank != 4))
    throw Error(ErrorCode::invalid_model, fmt::format("key is of rank {} and value of rank {}, not 3 or 4", key_rank, value_rank));
  return {d.in(0), d.in(1), d.in(2), key_rank == 4};
}

/// bias is that of the queries, then that of the keys, as many elements each, then that of the values.
void add_bias(Decomposition& d, Projections& p, size_t input) {
  if (!d.has(input)) return;
  ValueId bias = d.in(input), hidden = extents(d, p.q, 2), twice = d.op("Mul", {hidden, d.ints({2})});
  p.q = d.op("Add", {p.q, sliced(d, bias, d.ints({0}), hidden, 0)});
  if (p.heads_apart) return;
  p.k = d.op("Add", {p.k, sliced(d, bias, hidden, twice, 0)});
  p.v = d.op("Add", {p.v, sliced(d, bias, twice, d.ints({kEnd}), 0)});
}

bool same_length(const Decomposition& d, ValueId a, ValueId b) {
  const Type &x = d.type(a), &y = d.type(b);
  return x.has_rank() && y.has_rank() && x.rank() == 3 && y.rank() == 3 && (*x.shape)[1] == (*y.shape)[1];
}

/// What query i sees where there are more keys than queries: those up to its own place, but the last query sees all of them. This is
/// what onnxruntime's CPU kernel computes; where the lengths are equal it is the usual causal mask.
ValueId causal_mask(Decomposition& d, const Projections& p, ValueId num_past, ValueId num_keys) {
  ValueId length = extents(d, p.q, 1), query = counted(d, length);
  ValueId last = d.op("Add", {query, num_past});
  last = d.op("Where", {d.op("Equal", {query, d.op("Sub", {length, d.ints({1})})}), num_keys, last});
  ValueId keep = d.op("LessOrEqual", {counted(d, num_keys), d.op("Unsqueeze", {last, d.ints({1})})});
  return d.op("Where", {keep, d.scalar(0, p.q), d.scalar(std::numeric_limits<float>::lowest(), p.q)});
}

/// The scores before the softmax, where a causal mask left -infinity as onnxruntime shows it.
void give_scores(Decomposition& d, ValueId scores) {
  if (d.wants(3)) d.give(3, d.op("Max", {scores, d.scalar(std::numeric_limits<float>::lowest(), d.in(0))}));
}

void decompose_multi_head(Graph& graph, NodeId id) {
  enum Input : size_t { kBias = 3, kMask, kAttentionBias, kPastKey, kPastValue, kPastLength, kIndirection };
  Decomposition d(graph, id);
  const int64_t heads = positive(d, "num_heads");
  check_together(d, kPastKey, kPastValue, "past_key and past_value");
  refuse_input(d, kPastLength, "past_sequence_length"), refuse_input(d, kIndirection, "cache_indirection");
  Projections p = projections(d);
  if (p.heads_apart && d.has(kPastKey)) throw Error(ErrorCode::invalid_model, "past_key stands beside a key of rank 4, which is a past");
  bool causal = d.attributes().get_int("unidirectional", 0) != 0;
  const bool square = !d.has(1) || same_length(d, p.q, p.k);
  add_bias(d, p, kBias);

  ValueId num_past = d.has(kPastKey) ? extents(d, d.in(kPastKey), 2) : d.ints({0});
  ValueId num_keys = extents(d, p.k, p.heads_apart ? 2 : 1);
  if (d.has(kPastKey)) num_keys = d.op("Add", {num_keys, num_past});
  ValueId mask = both(d, padding_mask(d, d.in(kMask), p.q, num_keys, false, "key_padding_mask"), d.in(kAttentionBias));
  if (causal && !square) {
    mask = both(d, causal_mask(d, p, num_past, num_keys), mask);
    causal = false;
  }
  Attributes attributes = attention_attributes(d);
  attributes.set("is_causal", static_cast<int64_t>(causal));
  attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::biased));
  if (p.heads_apart)
    p.q = split_heads(d, p.q, heads);
  else
    attributes.set("q_num_heads", heads), attributes.set("kv_num_heads", heads);
  const int count = d.wants(3) ? 4 : d.wants(1) || d.wants(2) ? 3 : 1;
  auto outputs = d.op_n("Attention", {p.q, p.k, p.v, mask, d.in(kPastKey), d.in(kPastValue)}, count, attributes);
  d.give(0, p.heads_apart ? merge_heads(d, outputs[0]) : outputs[0]);
  if (count >= 3) d.give(1, outputs[1]), d.give(2, outputs[2]);
  if (count == 4) give_scores(d, outputs[3]);
  d.finish();
}

// One query for each sample. Keys and values of the past lie in buffers that are longer than what is valid.
void decompose_decoder_masked(Graph& graph, NodeId id) {
  enum Input : size_t { kMask = 3, kAttentionBias, kPastKey, kPastValue, kPastLength, kBeamWidth, kIndirection, kBias };
  Decomposition d(graph, id);
  const int64_t heads = positive(d, "num_heads");
  check_together(d, kPastKey, kPastValue, "past_key and past_value");
  refuse_input(d, kIndirection, "cache_indirection");
  if (!d.has(1) || !d.has(2)) throw Error(ErrorCode::not_implemented, "a packed query is not implemented: key and value have to be given");
  Projections p = projections(d);
  if (p.heads_apart == d.has(kPastKey))
    throw Error(ErrorCode::invalid_model, "key and value are of rank 4, or past_key and past_value are given: one of both");
  if (!p.heads_apart && d.attributes().get_int("past_present_share_buffer", 0) == 0)
    throw Error(ErrorCode::not_implemented, "past_present_share_buffer = 0 is not implemented with a past");
  if (!p.heads_apart && !d.has(kPastLength)) throw Error(ErrorCode::invalid_model, "past_sequence_length is missing");
  if (d.has(kMask) && known_rank(d, d.in(kMask), "mask_index") != 2)
    throw Error(ErrorCode::not_implemented, fmt::format("mask_index of rank {} is not implemented", d.rank(d.in(kMask))));
  add_bias(d, p, kBias);
  ValueId num_keys, valid = kNoValue, k = p.k, v = p.v;
  if (p.heads_apart) {
    num_keys = extents(d, p.k, 2);
  } else {
    ValueId past = d.op("Reshape", {d.cast(d.in(kPastLength), DType::int64), d.ints({1})}), batch = extents(d, p.q, 0);
    num_keys = d.op("Add", {past, d.ints({1})});
    valid = d.op("Expand", {num_keys, batch});
    ValueId places = d.op("Expand", {past, batch}), length = extents(d, d.in(kPastKey), 2);
    auto cache = [&](ValueId x, size_t input) {
      return d.op_n("UpdateCache", {x, places, length, d.in(input)}, 1, {{"num_heads", heads}}, "treadle")[0];
    };
    k = cache(p.k, kPastKey), v = cache(p.v, kPastValue);
  }
  ValueId mask = both(d, padding_mask(d, d.in(kMask), p.q, num_keys, false, "mask_index"), d.in(kAttentionBias));
  Attributes attributes = attention_attributes(d);
  attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::biased));
  auto outputs = d.op_n("Attention", {split_heads(d, p.q, heads), k, v, mask, kNoValue, kNoValue, valid}, d.wants(3) ? 4 : 1, attributes);
  d.give(0, merge_heads(d, outputs[0]));
  if (!p.heads_apart) d.give(1, k), d.give(2, v);
  if (d.wants(3)) d.give(3, sliced(d, outputs[3], d.ints({0}), num_keys, 3));
  d.finish();
}

}  // namespace

OpDef multi_head_attention_op() {
  constexpr TypeSet kInt32{DType::int32};
  return op("MultiHeadAttention",
            {{"query", kFloats, "T"},
             maybe("key", kFloats, "T"),
             maybe("value", kFloats, "T"),
             maybe("bias", kFloats, "T"),
             maybe("key_padding_mask", kInt32),
             maybe("attention_bias", kFloats, "T"),
             maybe("past_key", kFloats, "T"),
             maybe("past_value", kFloats, "T"),
             maybe("past_sequence_length", kInt32),
             maybe("cache_indirection", kInt32)},
            {{"output", kFloats, "T"}, maybe("present_key", kFloats, "T"), maybe("present_value", kFloats, "T"), maybe("qk", kFloats)},
            {{"mask_filter_value"}, {"num_heads", AttributeDef::Required{}}, {"scale"}, {"unidirectional", int64_t{0}}},
            decompose_multi_head);
}

OpDef decoder_masked_attention_op() {
  constexpr TypeSet kInt32{DType::int32};
  return op("DecoderMaskedMultiHeadAttention",
            {{"query", kFloats, "T"},
             maybe("key", kFloats, "T"),
             maybe("value", kFloats, "T"),
             maybe("mask_index", kInt32),
             maybe("attention_bias", kFloats, "T"),
             maybe("past_key", kFloats, "T"),
             maybe("past_value", kFloats, "T"),
             maybe("past_sequence_length", kInt32),
             maybe("beam_width", kInt32),
             maybe("cache_indirection", kInt32),
             maybe("bias", kFloats, "T")},
            {{"output", kFloats, "T"}, maybe("present_key", kFloats, "T"), maybe("present_value", kFloats, "T"), maybe("qk", kFloats)},
            {{"mask_filter_value"},
             {"num_heads", AttributeDef::Required{}},
             {"output_qk", int64_t{0}},
             {"past_present_share_buffer", int64_t{0}},
             {"scale"}},
            decompose_decoder_masked);
}

}  // namespace treadle::ops
