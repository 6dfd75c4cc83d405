// Implements GroupQueryAttention.
#include <cmath>
#include <cstdint>

#include "ops/microsoft/attention.h"

namespace treadle::ops {
namespace {

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLengths,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm,
  kCounts
};

struct Heads {
  int64_t query, shared;
};

/// Returns how the cache stores keys or values. "NONE": not quantized; "PER_TENSOR": integer codes with one scale; "PER_CHANNEL": integer
/// codes with a scale for each head and feature.
std::string_view coding(const Decomposition& d, bool values) {
  return d.attributes().get_string(values ? "v_quant_type" : "k_quant_type", "NONE");
}

void check_codes(const Decomposition& d) {
  const int64_t bits = d.attributes().get_int("kv_cache_bit_width", 0);
  if (coding(d, false) == "NONE" && coding(d, true) == "NONE") {
    refuse_attribute(d, "kv_cache_bit_width");
    return refuse_input(d, kKeyScale, "k_scale"), refuse_input(d, kValueScale, "v_scale");
  }
  if (coding(d, false) == "NONE" || coding(d, true) == "NONE")
    throw Error(ErrorCode::not_implemented, "codes for keys alone, or for values alone, are not implemented");
  if (bits != 8 && bits != 4) throw Error(ErrorCode::not_implemented, fmt::format("kv_cache_bit_width = {} is not implemented", bits));
  if (!d.has(kKeyScale) || !d.has(kValueScale)) throw Error(ErrorCode::invalid_model, "codes of keys and values need k_scale and v_scale");
  if (d.attributes().get_int("sliding_window_cache", 0) != 0)
    throw Error(ErrorCode::not_implemented, "codes of keys and values are not implemented with sliding_window_cache = 1");
  const DType dtype = d.type(d.in(kPastKey)).dtype, expected = bits == 8 ? DType::int8 : DType::uint8;
  if (dtype != expected && dtype != DType::undefined)
    throw Error(ErrorCode::invalid_model, fmt::format("past_key is {}; codes of {} bits are {}", name_of(dtype), bits, name_of(expected)));
}

void check_group(const Decomposition& d, Heads heads) {
  const Attributes& a = d.attributes();
  if (heads.query % heads.shared != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("num_heads = {} is no multiple of kv_num_heads = {}", heads.query, heads.shared));
  check_together(d, kKey, kValue, "key and value");
  check_together(d, kPastKey, kPastValue, "past_key and past_value");
  check_together(d, kCos, kSin, "cos_cache and sin_cache");
  if (!d.has(kLengths) || !d.has(kTotal)) throw Error(ErrorCode::invalid_model, "seqlens_k or total_sequence_length is missing");
  if (a.get_int("do_rotary", 0) != 0 && !d.has(kCos)) throw Error(ErrorCode::invalid_model, "do_rotary = 1 needs cos_cache and sin_cache");
  const int64_t causal = a.get_int("causal", 1), window = a.get_int("local_window_size", -1), shown = a.get_int("qk_output", 0);
  if (causal != 0 && causal != 1) throw Error(ErrorCode::invalid_model, fmt::format("causal is {}, not 0 or 1", causal));
  if (causal == 0 && window != -1)
    throw Error(ErrorCode::invalid_model, fmt::format("local_window_size is {}; it has to be -1 where causal is 0", window));
  if (shown < 0 || shown > 2) throw Error(ErrorCode::invalid_model, fmt::format("qk_output is {}, not 0 to 2", shown));
  if (shown == 0 && d.wants(3)) throw Error(ErrorCode::invalid_model, "the output 3 (output_qk) needs qk_output = 1 or 2");
  if (const int64_t windowed = a.get_int("sliding_window_cache", 0); windowed != 0) {
    if (windowed != 1) throw Error(ErrorCode::invalid_model, fmt::format("sliding_window_cache is {}, not 0 or 1", windowed));
    if (window < 1)
      throw Error(ErrorCode::invalid_model, fmt::format("sliding_window_cache = 1 needs a positive local_window_size; it is {}", window));
    if (!d.has(kPastKey)) throw Error(ErrorCode::invalid_model, "sliding_window_cache = 1 needs past_key and past_value");
    if (d.wants(3)) throw Error(ErrorCode::not_implemented, "the output 3 (output_qk) is not implemented with sliding_window_cache = 1");
  }
  check_codes(d);
  check_together(d, kQueryNorm, kKeyNorm, "q_norm_weight and k_norm_weight");
  if (d.has(kCounts) && (causal == 0 || !d.has(kPastKey)))
    throw Error(ErrorCode::invalid_model, "query_seqlens needs causal = 1, past_key and past_value");
}

/// Reshapes [batch, length, heads, size] to [batch, length, heads * size].
ValueId merge_features(Decomposition& d, ValueId x) { return d.op("Reshape", {x, d.ints({0, 0, -1})}); }

/// Divides each head of x [batch, length, heads * size] by its root mean square, and multiplies by the weights [size].
ValueId normalized(Decomposition& d, ValueId x, size_t weight, std::string_view epsilon, int64_t heads) {
  if (!d.has(weight)) return x;
  const float value = d.attributes().get_float(epsilon, d.attributes().get_float("qk_norm_epsilon", 1e-6F));
  if (!(value > 0) || std::isinf(value))
    throw Error(ErrorCode::invalid_model, fmt::format("{} is {}; expected a positive number", epsilon, value));
  x = d.op("Reshape", {x, d.ints({0, 0, heads, -1})});
  return merge_features(d, d.op("RMSNormalization", {x, d.in(weight)}, {{"epsilon", value}}));
}

/// Returns queries, keys and values, each [batch, length, heads * size]. If the three are packed in one input, the input is split.
std::vector<ValueId> separate(Decomposition& d, Heads heads) {
  if (d.has(kKey)) return {d.in(kQuery), d.in(kKey), d.in(kValue)};
  ValueId size = d.op("Div", {extents(d, d.in(kQuery), 2), d.ints({heads.query + 2 * heads.shared})});
  ValueId parts = d.op("Mul", {size, d.ints({heads.query, heads.shared, heads.shared})});
  return d.op_n("Split", {d.in(kQuery), parts}, 3, {{"axis", int64_t{2}}});
}

ValueId rotated(Decomposition& d, ValueId x, ValueId positions, int64_t heads) {
  if (d.attributes().get_int("do_rotary", 0) == 0) return x;
  Attributes attributes{{"num_heads", heads}, {"interleaved", d.attributes().get_int("rotary_interleaved", 0)}};
  auto turned = [&](ValueId features) {
    return d.op("RotaryEmbedding", {features, d.in(kCos), d.in(kSin), positions}, std::move(attributes));
  };
  if (const int64_t pairs = d.extent(d.in(kCos), 1); pairs >= 0) {
    attributes.set("rotary_embedding_dim", 2 * pairs);
    return turned(x);
  }
  // The number of features to rotate is known only during the run. They are split off, rotated, and concatenated with the other features.
  const ValueId apart = d.op("Reshape", {x, d.ints({0, 0, heads, -1})}), width = d.op("Mul", {extents(d, d.in(kCos), 1), d.ints({2})});
  const ValueId turning = turned(merge_features(d, sliced(d, apart, d.ints({0}), width, 3)));
  const ValueId others = sliced(d, apart, width, d.ints({INT64_MAX}), 3);
  return merge_features(d, joined(d, {d.op("Reshape", {turning, d.ints({0, 0, heads, -1})}), others}, 3));
}

/// The softmax with an attention sink: each head has one additional score, for a key whose value is zero. Returns the weights of the real
/// keys.
ValueId softmax_with_sink(Decomposition& d, ValueId scores) {
  ValueId sink = d.has(kSink) ? d.op("Reshape", {d.in(kSink), d.ints({1, -1, 1, 1})}) : d.scalar(0, d.in(kQuery));
  sink = d.op("Expand", {sink, joined(d, {extents(d, scores, 0, 3), d.ints({1})})});
  ValueId weights = d.op("Softmax", {joined(d, {scores, sink}, -1)}, {{"axis", int64_t{-1}}});
  return sliced(d, weights, d.ints({0}), d.ints({-1}), 3);
}

/// Sets output 3, if it is used, to the scores or weights of all keys of this run. Keys that a query does not see get the score 0.
void give_scores(Decomposition& d, ValueId scores, bool probabilities) {
  if (!d.wants(3)) return;
  if (!probabilities) scores = d.op("Where", {d.op("IsInf", {scores}), d.scalar(0, d.in(kQuery)), scores});
  ValueId total = d.op("Reshape", {d.cast(d.in(kTotal), DType::int64), d.ints({1})});
  d.give(3, sliced(d, scores, d.ints({0}), total, 3));
}

/// What the attention reads from a cache (positions, valid rows, bias, k, v), and the caches for the next run (`present_...`).
struct Cache {
  ValueId positions, rows, bias;
  ValueId k, v, present_key, present_value;
};

/// Quantizes new keys or values [batch, length, heads * size] to int8 or to 4 bits. With 4 bits, a byte has two codes, the first one in its
/// lower half, and the code 8 represents zero.
ValueId coded(Decomposition& d, ValueId x, size_t scale) {
  const bool bytes = d.attributes().get_int("kv_cache_bit_width") == 8;
  // Multiplies by the reciprocal of the scale, as onnxruntime does, so that numbers halfway between two codes round the same way.
  const ValueId factors = d.op("Reciprocal", {d.op("Reshape", {d.cast(d.in(scale), DType::float32), d.ints({-1})})});
  auto number = [&](float value) { return d.constant(Tensor::scalar(value)); };
  x = d.op("Round", {d.op("Mul", {d.cast(x, DType::float32), factors})});
  x = d.op("Clip", {x, number(bytes ? -128 : -8), number(bytes ? 127 : 7)});
  if (bytes) return d.cast(x, DType::int8);
  const ValueId pairs = d.op("Reshape", {d.cast(d.op("Add", {x, number(8)}), DType::uint8), d.ints({0, 0, -1, 2})});
  auto half = [&](int64_t i) { return d.op("Gather", {pairs, integer(d, i)}, {{"axis", int64_t{3}}}); };
  const ValueId upper = d.op("BitShift", {half(1), d.constant(Tensor::scalar<uint8_t>(4))}, {{"direction", std::string("LEFT")}});
  return d.op("BitwiseOr", {half(0), upper});
}

/// Dequantizes integer codes of a cache [batch, heads, length, size].
ValueId decoded(Decomposition& d, ValueId codes, size_t scale, int64_t heads) {
  const bool per_feature = coding(d, scale == kValueScale) == "PER_CHANNEL";
  const ValueId scales = d.op("Reshape", {d.cast(d.in(scale), DType::float32), per_feature ? d.ints({1, heads, 1, -1}) : d.ints({1})});
  ValueId numbers;
  if (d.attributes().get_int("kv_cache_bit_width") == 4) {
    const ValueId four = d.constant(Tensor::scalar<uint8_t>(4)), mask = d.constant(Tensor::scalar<uint8_t>(15));
    auto apart = [&](ValueId half) { return d.op("Unsqueeze", {half, d.ints({-1})}); };
    const ValueId lower = d.op("BitwiseAnd", {codes, mask}), upper = d.op("BitShift", {codes, four}, {{"direction", std::string("RIGHT")}});
    numbers = d.cast(d.op("Reshape", {joined(d, {apart(lower), apart(upper)}, -1), d.ints({0, 0, 0, -1})}), DType::float32);
    numbers = d.op("Sub", {numbers, d.constant(Tensor::scalar(8.0F))});
  } else {
    numbers = d.cast(codes, DType::float32);
  }
  return d.op("CastLike", {d.op("Mul", {numbers, scales}), d.in(kQuery)});
}

/// Builds the nodes for a cache that keeps all tokens of the sequence.
Cache whole_cache(Decomposition& d, const std::vector<ValueId>& parts, Heads heads) {
  auto places = d.op_n("CachePositions", {d.in(kQuery), d.in(kPastKey), d.in(kLengths), d.in(kTotal), d.in(kPositions), d.in(kCounts)}, 4,
                       {{"causal", d.attributes().get_int("causal", 1)}}, "treadle");
  const bool codes = coding(d, false) != "NONE";
  auto updated = [&](ValueId x, size_t past, size_t scale) {
    if (codes) x = coded(d, x, scale);
    return d.op_n("UpdateCache", {x, places[0], d.has(past) ? places[3] : kNoValue, d.in(past), d.in(kCounts)}, 1,
                  {{"num_heads", heads.shared}}, "treadle")[0];
  };
  const ValueId k = updated(rotated(d, parts[1], places[2], heads.shared), kPastKey, kKeyScale),
                v = updated(parts[2], kPastValue, kValueScale);
  if (!codes) return {places[2], places[1], d.in(kBias), k, v, k, v};
  return {places[2], places[1], d.in(kBias), decoded(d, k, kKeyScale, heads.shared), decoded(d, v, kValueScale, heads.shared), k, v};
}

/// Returns the columns of a bias [batch or 1, heads or 1, queries, total] that belong to the rows of `keys`. The first row has the position
/// `origin`.
ValueId bias_of_rows(Decomposition& d, ValueId bias, ValueId keys, ValueId origin) {
  if (bias == kNoValue) return bias;
  const ValueId last = d.op("Squeeze", {d.op("Sub", {extents(d, bias, 3), d.ints({1})}), d.ints({0})});
  ValueId columns = d.op("Add", {d.op("Unsqueeze", {origin, d.ints({1, 2, 3})}), counted(d, extents(d, keys, 2))});
  columns = d.op("Clip", {columns, integer(d, 0), last});  // columns after the last key are masked by other operators
  bias = d.op("Expand", {bias, joined(d, {extents(d, origin, 0), d.ints({1, 1, 1})})});
  columns = d.op("Expand", {columns, joined(d, {d.ints({1}), extents(d, bias, 1, 2), d.ints({1})})});
  return d.op("GatherElements", {bias, columns}, {{"axis", int64_t{3}}});
}

/// Builds the nodes for a cache that keeps only the tokens of the attention window.
Cache window_cache(Decomposition& d, const std::vector<ValueId>& parts, Heads heads) {
  auto places = d.op_n("WindowPositions", {d.in(kQuery), d.in(kPastKey), d.in(kLengths), d.in(kTotal), d.in(kPositions), d.in(kCounts)}, 5,
                       {{"window", d.attributes().get_int("local_window_size")}}, "treadle");
  auto updated = [&](ValueId x, size_t past) {
    return d.op_n("UpdateWindow", {x, places[0], places[1], places[3], d.in(past), d.in(kCounts)}, 2, {}, "treadle");
  };
  const auto k = updated(rotated(d, parts[1], places[2], heads.shared), kPastKey), v = updated(parts[2], kPastValue);
  ValueId rows = places[1];
  if (d.has(kCounts)) {  // padding among the queries is at the end
    const ValueId padding = d.op("Sub", {extents(d, d.in(kQuery), 1), d.cast(d.in(kCounts), DType::int64)});
    rows = d.op("Min", {d.op("Add", {rows, padding}), extents(d, k[1], 2)});
  }
  return {places[2], rows, bias_of_rows(d, d.in(kBias), k[1], places[4]), k[1], v[1], k[0], v[0]};
}

void decompose_group_query(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Heads heads{positive(d, "num_heads"), positive(d, "kv_num_heads")};
  check_group(d, heads);
  const Attributes& a = d.attributes();
  const bool smooth = a.get_int("smooth_softmax", -1) == 1 || d.has(kSink);
  const int64_t window = a.get_int("local_window_size", -1), shown = d.wants(3) ? a.get_int("qk_output", 0) : 0;
  auto parts = separate(d, heads);
  parts[0] = normalized(d, parts[0], kQueryNorm, "q_norm_epsilon", heads.query);
  parts[1] = normalized(d, parts[1], kKeyNorm, "k_norm_epsilon", heads.shared);
  const Cache cache = a.get_int("sliding_window_cache", 0) != 0 ? window_cache(d, parts, heads) : whole_cache(d, parts, heads);
  ValueId q = split_heads(d, rotated(d, parts[0], cache.positions, heads.query), heads.query);

  Attributes attributes = attention_attributes(d);
  attributes.set("is_causal", a.get_int("causal", 1));
  if (window > 0) attributes.set("left_window_size", window - 1);
  if (smooth || shown == 1) attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::biased));
  if (!smooth && shown == 2) attributes.set("qk_matmul_output_mode", static_cast<int64_t>(Shown::probabilities));
  auto attention =
      d.op_n("Attention", {q, cache.k, cache.v, cache.bias, kNoValue, kNoValue, cache.rows}, smooth || shown != 0 ? 4 : 1, attributes);
  ValueId y = attention[0], scores = attention.size() == 4 ? attention[3] : kNoValue;
  if (smooth) {
    ValueId weights = softmax_with_sink(d, scores);
    y = d.op("MatMul",
             {d.op("Reshape", {weights, d.ints({0, heads.shared, -1, 0})}), cache.v});  // heads that share keys become rows of one product
    y = d.op("Reshape", {y, d.ints({0, heads.query, -1, 0})});
    if (shown == 2) scores = weights;
  }
  d.give(0, merge_heads(d, y));
  d.give(1, cache.present_key), d.give(2, cache.present_value);
  give_scores(d, scores, shown == 2);
  d.finish();
}

}  // namespace

OpDef group_query_attention_op() {
  using Required = AttributeDef::Required;
  constexpr TypeSet kInt32{DType::int32}, kCaches = kFloats | TypeSet{DType::uint8, DType::int8, DType::float8e4m3fn};
  return op("GroupQueryAttention",
            {{"query", kFloats, "T"},
             maybe("key", kFloats, "T"),
             maybe("value", kFloats, "T"),
             maybe("past_key", kCaches, "T_CACHE"),
             maybe("past_value", kCaches, "T_CACHE"),
             {"seqlens_k", kInt32},
             {"total_sequence_length", kInt32},
             maybe("cos_cache", kFloats, "T"),
             maybe("sin_cache", kFloats, "T"),
             maybe("position_ids", kInt64),
             maybe("attention_bias", kFloats, "T"),
             maybe("head_sink", kFloats, "T"),
             maybe("k_scale", kFloats),
             maybe("v_scale", kFloats),
             maybe("q_norm_weight", kFloats, "T"),
             maybe("k_norm_weight", kFloats, "T"),
             maybe("query_seqlens", kInt32)},
            {{"output", kFloats, "T"},
             maybe("present_key", kCaches, "T_CACHE"),
             maybe("present_value", kCaches, "T_CACHE"),
             maybe("output_qk", kFloats, "T")},
            {{"causal", int64_t{1}},
             {"do_rotary", int64_t{0}},
             {"k_norm_epsilon"},
             {"k_quant_type", std::string_view("NONE"), one_of("NONE|PER_TENSOR|PER_CHANNEL")},
             {"kv_cache_bit_width"},
             {"kv_num_heads", Required{}},
             {"local_window_size", int64_t{-1}},
             {"num_heads", Required{}},
             {"q_norm_epsilon"},
             {"qk_norm_epsilon"},
             {"qk_output", int64_t{0}},
             {"rotary_interleaved", int64_t{0}},
             {"scale"},
             {"sliding_window_cache", int64_t{0}},
             {"smooth_softmax", int64_t{-1}},
             {"softcap"},
             {"v_quant_type", std::string_view("NONE"), one_of("NONE|PER_TENSOR|PER_CHANNEL")}},
            decompose_group_query);
}

}  // namespace treadle::ops
