// Implements MultiHeadAttention and DecoderMaskedMultiHeadAttention.
#include <limits>

#include "ops/microsoft/attention.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

/// Splits x [batch, length, heads, count, size] into `count` tensors [batch, length, heads * size].
std::vector<ValueId> unpacked(Decomposition& d, ValueId x, int count) {
  auto parts = d.op_n("Split", {x}, count, {{"axis", int64_t{3}}, {"num_outputs", int64_t{count}}});
  for (ValueId& part : parts) part = d.op("Reshape", {part, d.ints({0, 0, -1})});
  return parts;
}

struct Projections {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
  bool heads_apart = false;  ///< true: keys and values already have the shape [batch, heads, length, size]
  bool open = false;         ///< true: the value of heads_apart is known only during the run
};

/// Makes sure that query, key and value have known ranks (by a branch for each possible rank), except for keys and values whose layout may
/// be either one.
void settle_ranks(Decomposition& d, bool perhaps_apart) {
  branch_by_rank(d, {0}, {d.has(1) ? 3 : 5});
  const bool told = d.rank(d.in(1)) >= 0 || d.rank(d.in(2)) >= 0;
  if (d.has(1) && (told || !d.has(2) || !perhaps_apart)) branch_by_rank(d, {1, 2}, {d.has(2) ? 3 : 5});
}

/// Returns keys or values as [batch, heads, length, size]. x has this shape already, or it is [batch, length, heads * size]; in the latter
/// case the bias is added.
ValueId apart_in_any_case(Decomposition& d, ValueId x, ValueId bias, int64_t heads) {
  return by_rank(d, {x, bias}, {0}, {3, 4}, [&](NodeWriter& w, const std::vector<ValueId>& v) {
    if (w.rank(v[0]) == 4) return std::vector{v[0]};
    return std::vector{split_heads(w, v[1] == kNoValue ? v[0] : w.op("Add", {v[0], v[1]}), heads)};
  })[0];
}

Projections projections(Decomposition& d) {
  const int rank = d.rank(d.in(0));
  if (!d.has(1)) {
    if (rank != 5 || d.has(2))
      throw Error(ErrorCode::invalid_model, fmt::format("without key there is no value, and query is of rank 5; it is of rank {}", rank));
    auto parts = unpacked(d, d.in(0), 3);
    return {parts[0], parts[1], parts[2]};
  }
  const int key_rank = d.rank(d.in(1));
  if (rank != 3) throw Error(ErrorCode::invalid_model, fmt::format("query is of rank {}, not 3, beside a key", rank));
  if (key_rank == 5) {
    if (d.has(2)) throw Error(ErrorCode::invalid_model, "a key of rank 5 holds the values; there can be no value");
    auto parts = unpacked(d, d.in(1), 2);
    return {d.in(0), parts[0], parts[1]};
  }
  if (!d.has(2)) throw Error(ErrorCode::invalid_model, fmt::format("value is missing beside a key of rank {}", key_rank));
  const int value_rank = d.rank(d.in(2));
  if (key_rank < 0 && value_rank < 0) return {d.in(0), d.in(1), d.in(2), false, true};
  if (value_rank != key_rank || (key_rank != 3 && key_rank != 4))
    throw Error(ErrorCode::invalid_model, fmt::format("key is of rank {} and value of rank {}, not 3 or 4", key_rank, value_rank));
  return {d.in(0), d.in(1), d.in(2), key_rank == 4};
}

/// Adds the bias, which has elements for the queries, then as many for the keys; the rest are for the values.
void add_bias(Decomposition& d, Projections& p, size_t input, int64_t heads) {
  ValueId of_keys = kNoValue, of_values = kNoValue;
  if (d.has(input)) {
    ValueId bias = d.in(input), hidden = extents(d, p.q, 2), twice = d.op("Mul", {hidden, d.ints({2})});
    p.q = d.op("Add", {p.q, sliced(d, bias, d.ints({0}), hidden, 0)});
    if (!p.heads_apart) of_keys = sliced(d, bias, hidden, twice, 0), of_values = sliced(d, bias, twice, d.ints({kEnd}), 0);
  }
  if (p.open) {
    p.k = apart_in_any_case(d, p.k, of_keys, heads), p.v = apart_in_any_case(d, p.v, of_values, heads);
    p.heads_apart = true, p.open = false;
  } else if (of_keys != kNoValue) {
    p.k = d.op("Add", {p.k, of_keys}), p.v = d.op("Add", {p.v, of_values});
  }
}

bool same_length(const Decomposition& d, ValueId a, ValueId b) {
  const Type &x = d.type(a), &y = d.type(b);
  return x.has_rank() && y.has_rank() && x.rank() == 3 && y.rank() == 3 && (*x.shape)[1] == (*y.shape)[1];
}

/// Returns the causal mask of onnxruntime's CPU kernel: query i sees the keys up to index num_past + i, but the last query sees all keys.
/// If the queries are the last keys, this is the usual causal mask.
ValueId causal_mask(Decomposition& d, const Projections& p, ValueId num_past, ValueId num_keys) {
  ValueId length = extents(d, p.q, 1), query = counted(d, length);
  ValueId last = d.op("Add", {query, num_past});
  last = d.op("Where", {d.op("Equal", {query, d.op("Sub", {length, d.ints({1})})}), num_keys, last});
  ValueId keep = d.op("LessOrEqual", {counted(d, num_keys), d.op("Unsqueeze", {last, d.ints({1})})});
  return d.op("Where", {keep, d.scalar(0, p.q), d.scalar(std::numeric_limits<float>::lowest(), p.q)});
}

/// Sets the output that has the scores before the softmax, if it is used. As in onnxruntime, masked scores of -infinity become the lowest
/// float.
void give_scores(Decomposition& d, ValueId scores) {
  if (d.wants(3)) d.give(3, d.op("Max", {scores, d.scalar(std::numeric_limits<float>::lowest(), d.in(0))}));
}

/// The cached keys and values. They are either in buffers that past and present share, or in a cache that grows with each run.
struct SharedCache {
  ValueId k = kNoValue, v = kNoValue;  ///< the keys and values that the queries attend to
  ValueId present_key = kNoValue, present_value = kNoValue;
  ValueId num_past = kNoValue, num_keys = kNoValue;
  ValueId valid = kNoValue;  ///< number of valid rows of k and v, per sample; kNoValue if all rows are valid
};

/// Writes new keys and values to the cache after the past ones. Input number `length` has the number of past rows.
SharedCache shared_cache(Decomposition& d, const Projections& p, size_t past_key, size_t length, int64_t heads) {
  SharedCache c{};
  const ValueId batch = extents(d, p.q, 0);
  c.num_past = d.op("Reshape", {d.cast(d.in(length), DType::int64), d.ints({1})});
  c.num_keys = d.op("Add", {c.num_past, extents(d, p.k, 1)});
  const ValueId places = d.op("Expand", {c.num_past, batch}), rows = extents(d, d.in(past_key), 2);
  auto updated = [&](ValueId x, size_t past) {
    return d.op_n("UpdateCache", {x, places, rows, d.in(past)}, 1, {{"num_heads", heads}}, "treadle")[0];
  };
  c.present_key = updated(p.k, past_key), c.present_value = updated(p.v, past_key + 1);
  c.k = c.present_key, c.v = c.present_value;
  c.valid = d.op("Expand", {c.num_keys, batch});
  return c;
}

/// Appends the new keys and values to the past ones. If there is no past, the new ones are the whole cache.
SharedCache growing_cache(Decomposition& d, const Projections& p, size_t past_key, int64_t heads) {
  SharedCache c{};
  const bool past = d.has(past_key);
  c.num_past = past ? extents(d, d.in(past_key), 2) : d.ints({0});
  auto grown = [&](ValueId x, size_t from) {
    x = split_heads(d, x, heads);
    return past ? joined(d, {d.in(from), x}, 2) : x;
  };
  c.k = c.present_key = grown(p.k, past_key), c.v = c.present_value = grown(p.v, past_key + 1);
  c.num_keys = extents(d, c.k, 2);
  return c;
}

/// For a beam search, replaces each past row of the cache by the row of the beam that input `indirection` names.
void read_beams(Decomposition& d, SharedCache& c, size_t indirection) {
  for (ValueId* cache : {&c.k, &c.v}) *cache = d.op_n("GatherBeams", {*cache, d.in(indirection), c.num_past}, 1, {}, "treadle")[0];
}

void decompose_multi_head(Graph& graph, NodeId id) {
  enum Input : size_t { kBias = 3, kMask, kAttentionBias, kPastKey, kPastValue, kPastLength, kIndirection };
  Decomposition d(graph, id);
  const int64_t heads = positive(d, "num_heads");
  check_together(d, kPastKey, kPastValue, "past_key and past_value");
  if (d.has(kPastLength) && !d.has(kPastKey)) throw Error(ErrorCode::invalid_model, "past_sequence_length is given without past_key");
  const bool beams = d.has(kIndirection);
  settle_ranks(d, !d.has(kPastKey) && !beams);
  Projections p = projections(d);
  if (p.heads_apart && d.has(kPastKey)) throw Error(ErrorCode::invalid_model, "past_key stands beside a key of rank 4, which is a past");
  if (p.heads_apart && beams) throw Error(ErrorCode::not_implemented, "cache_indirection beside a key of rank 4 is not implemented");
  bool causal = d.attributes().get_int("unidirectional", 0) != 0;
  const bool square = !d.has(1) || same_length(d, p.q, p.k);
  add_bias(d, p, kBias, heads);

  const bool shared = d.has(kPastLength) || beams;
  SharedCache cache;
  if (d.has(kPastLength))
    cache = shared_cache(d, p, kPastKey, kPastLength, heads);
  else if (beams)
    cache = growing_cache(d, p, kPastKey, heads);
  if (beams) read_beams(d, cache, kIndirection);
  ValueId num_past = cache.num_past, num_keys = cache.num_keys;
  if (!shared) {
    num_past = d.has(kPastKey) ? extents(d, d.in(kPastKey), 2) : d.ints({0});
    num_keys = extents(d, p.k, p.heads_apart ? 2 : 1);
    if (d.has(kPastKey)) num_keys = d.op("Add", {num_keys, num_past});
  }
  ValueId mask = both(d, padding_mask(d, d.in(kMask), p.q, num_keys, false, "key_padding_mask"), d.in(kAttentionBias));
  if (causal && (!square || (shared && cache.valid == kNoValue))) {
    mask = both(d, causal_mask(d, p, num_past, num_keys), mask);
    causal = false;
  }
  Attributes attributes = attention_attributes(d);
  attributes.set("is_causal", static_cast<int64_t>(causal));
  attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::biased));
  const bool apart = p.heads_apart || shared;
  if (apart)
    p.q = split_heads(d, p.q, heads);
  else
    attributes.set("q_num_heads", heads), attributes.set("kv_num_heads", heads);
  const int count = d.wants(3) ? 4 : !shared && (d.wants(1) || d.wants(2)) ? 3 : 1;
  auto outputs = shared ? d.op_n("Attention", {p.q, cache.k, cache.v, mask, kNoValue, kNoValue, cache.valid}, count, attributes)
                        : d.op_n("Attention", {p.q, p.k, p.v, mask, d.in(kPastKey), d.in(kPastValue)}, count, attributes);
  d.give(0, apart ? merge_heads(d, outputs[0]) : outputs[0]);
  if (shared)
    d.give(1, cache.present_key), d.give(2, cache.present_value);
  else if (count >= 3)
    d.give(1, outputs[1]), d.give(2, outputs[2]);
  if (count == 4) give_scores(d, shared ? sliced(d, outputs[3], d.ints({0}), num_keys, 3) : outputs[3]);
  d.finish();
}

// Decomposes DecoderMaskedMultiHeadAttention, which has one query per sample. The buffers for past keys and values have more rows than are
// valid.
void decompose_decoder_masked(Graph& graph, NodeId id) {
  enum Input : size_t { kMask = 3, kAttentionBias, kPastKey, kPastValue, kPastLength, kBeamWidth, kIndirection, kBias };
  Decomposition d(graph, id);
  const int64_t heads = positive(d, "num_heads");
  check_together(d, kPastKey, kPastValue, "past_key and past_value");
  if (!d.has(1) || !d.has(2)) throw Error(ErrorCode::not_implemented, "a packed query is not implemented: key and value have to be given");
  branch_by_rank(d, {0}, {3}), branch_by_rank(d, {1, 2}, {d.has(kPastKey) ? 3 : 4});
  Projections p = projections(d);
  if (p.heads_apart == d.has(kPastKey))
    throw Error(ErrorCode::invalid_model, "key and value are of rank 4, or past_key and past_value are given: one of both");
  if (!p.heads_apart && d.attributes().get_int("past_present_share_buffer", 0) == 0)
    throw Error(ErrorCode::not_implemented, "past_present_share_buffer = 0 is not implemented with a past");
  if (!p.heads_apart && !d.has(kPastLength)) throw Error(ErrorCode::invalid_model, "past_sequence_length is missing");
  branch_by_rank(d, {kMask}, {2});
  if (d.has(kMask) && d.rank(d.in(kMask)) != 2)
    throw Error(ErrorCode::not_implemented, fmt::format("mask_index of rank {} is not implemented", d.rank(d.in(kMask))));
  add_bias(d, p, kBias, heads);
  SharedCache cache =
      p.heads_apart ? SharedCache{.k = p.k, .v = p.v, .num_keys = extents(d, p.k, 2)} : shared_cache(d, p, kPastKey, kPastLength, heads);
  if (d.has(kIndirection)) {
    if (p.heads_apart) throw Error(ErrorCode::not_implemented, "cache_indirection is not implemented without past_key and past_value");
    read_beams(d, cache, kIndirection);
  }
  ValueId mask = both(d, padding_mask(d, d.in(kMask), p.q, cache.num_keys, false, "mask_index"), d.in(kAttentionBias));
  Attributes attributes = attention_attributes(d);
  attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::biased));
  auto outputs = d.op_n("Attention", {split_heads(d, p.q, heads), cache.k, cache.v, mask, kNoValue, kNoValue, cache.valid},
                        d.wants(3) ? 4 : 1, attributes);
  d.give(0, merge_heads(d, outputs[0]));
  if (!p.heads_apart) d.give(1, cache.present_key), d.give(2, cache.present_value);
  if (d.wants(3)) d.give(3, sliced(d, outputs[3], d.ints({0}), cache.num_keys, 3));
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
