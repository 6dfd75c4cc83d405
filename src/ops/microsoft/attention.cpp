#include "ops/microsoft/attention.h"

#include "ops/microsoft/microsoft.h"
#include "ops/rank_branches.h"

namespace treadle::ops {

int64_t positive(const Decomposition& d, std::string_view name) {
  const int64_t value = d.attributes().get_int(name, 0);
  if (value < 1) throw Error(ErrorCode::invalid_model, fmt::format("{} is {}; it must be positive", name, value));
  return value;
}

void refuse_attribute(const Decomposition& d, std::string_view name, int64_t otherwise) {
  const int64_t value = d.attributes().get_int(name, otherwise);
  if (value != otherwise) throw Error(ErrorCode::not_implemented, fmt::format("{} = {} is not implemented", name, value));
}

void refuse_input(const Decomposition& d, size_t i, std::string_view name) {
  if (d.has(i)) throw Error(ErrorCode::not_implemented, fmt::format("the input {} ({}) is not implemented", i, name));
}

void check_together(const Decomposition& d, size_t a, size_t b, std::string_view names) {
  if (d.has(a) != d.has(b)) throw Error(ErrorCode::invalid_model, fmt::format("{} must be given together", names));
}

ValueId extents(NodeWriter& w, ValueId x, int64_t axis, int64_t count) {
  return w.op("Shape", {x}, {{"start", axis}, {"end", axis + count}});
}

ValueId joined(NodeWriter& w, std::vector<ValueId> parts, int64_t axis) { return w.op("Concat", std::move(parts), {{"axis", axis}}); }

ValueId sliced(NodeWriter& w, ValueId x, ValueId begin, ValueId end, int64_t axis) {
  return w.op("Slice", {x, begin, end, w.ints({axis})});
}

ValueId integer(NodeWriter& w, int64_t number) { return w.constant(Tensor::scalar<int64_t>(number)); }

ValueId counted(NodeWriter& w, ValueId length) {
  return w.op("Range", {integer(w, 0), w.op("Reshape", {length, w.ints({})}), integer(w, 1)});
}

ValueId split_heads(NodeWriter& w, ValueId x, int64_t heads) {
  ValueId split = w.op("Reshape", {x, w.ints({0, 0, heads, -1})});
  return w.op("Transpose", {split}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

ValueId merge_heads(NodeWriter& w, ValueId x) {
  ValueId rows = w.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  return w.op("Reshape", {rows, w.ints({0, 0, -1})});
}

namespace {

/// Returns a mask, true for keys that are not padding. The mask's rank must be known; kAnyRank represents 2 or 3.
ValueId keys_kept(NodeWriter& w, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name) {
  const int rank = w.rank(mask);
  if (rank == 1) {
    ValueId lengths = w.cast(mask, DType::int64), batch = extents(w, q, 0), keys = counted(w, num_keys);
    auto column = [&](ValueId x) { return w.op("Unsqueeze", {x, w.ints({1, 2, 3})}); };
    ValueId keep = w.op("Less", {keys, column(sliced(w, lengths, w.ints({0}), batch, 0))});
    if (!starts) return keep;
    // The mask has `batch` elements, the ends of the samples, or 2 * batch elements: the ends, then the starts.
    ValueId twice = w.op("Mul", {batch, w.ints({2})}),
            zeros = w.op("ConstantOfShape", {batch}, {{"value", Datum(Tensor::vector<int64_t>(std::vector<int64_t>{0}))}});
    ValueId second = sliced(w, joined(w, {sliced(w, lengths, batch, twice, 0), zeros}), w.ints({0}), batch, 0);
    ValueId first = w.op("Where", {w.op("Equal", {extents(w, mask, 0), twice}), second, zeros});
    return w.op("And", {keep, w.op("GreaterOrEqual", {keys, column(first)})});
  }
  const ValueId zero = w.constant(Tensor::scalar<int32_t>(0));
  if (rank == 2 || rank == 3 || rank == kAnyRank) {
    ValueId keep = w.op("Greater", {mask, zero});
    if (rank == kAnyRank)  // adds an axis of queries; its extent is 1 or the number of queries
      keep = w.op("Reshape", {keep, joined(w, {extents(w, mask, 0), w.ints({1, -1}), w.op("Shape", {mask}, {{"start", int64_t{-1}}})})});
    else
      keep = w.op("Unsqueeze", {keep, rank == 2 ? w.ints({1, 2}) : w.ints({1})});
    // Expand reports a mask that is too short. Broadcasting would apply its last element to keys that it does not describe.
    return w.op("Expand", {keep, joined(w, {w.ints({1, 1, 1}), num_keys})});
  }
  if (rank != 4 || !starts) throw Error(ErrorCode::not_implemented, fmt::format("{} of rank {} is not implemented", name, rank));
  // The mask covers the maximum numbers of queries and keys. Only the rows and columns of this run's queries and keys are used.
  const ValueId num_queries = extents(w, q, 1), first = w.op("Sub", {num_keys, num_queries});
  const ValueId own = sliced(w, sliced(w, mask, first, num_keys, 2), w.ints({0}), num_keys, 3);
  return w.op("Greater", {w.op("Reshape", {own, joined(w, {w.ints({0, 1}), num_queries, num_keys})}), zero});
}

}  // namespace

ValueId padding_mask(Decomposition& d, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name) {
  if (mask == kNoValue) return kNoValue;
  const float hidden = d.attributes().get_float("mask_filter_value", -10000.0F);
  return by_rank(d, {mask, q, num_keys}, {0}, starts ? std::vector<int>{1, 4, kAnyRank} : std::vector<int>{1, kAnyRank},
                 [&](NodeWriter& w, const std::vector<ValueId>& v) {
                   const ValueId keep = keys_kept(w, v[0], v[1], v[2], starts, name);
                   return std::vector{w.op("Where", {keep, w.scalar(0, v[1]), w.scalar(hidden, v[1])})};
                 })[0];
}

ValueId both(NodeWriter& w, ValueId a, ValueId b) {
  if (a == kNoValue) return b;
  return b == kNoValue ? a : w.op("Add", {a, b});
}

Attributes attention_attributes(const Decomposition& d) {
  Attributes attributes;
  if (const float scale = d.attributes().get_float("scale", 0); scale != 0) attributes.set("scale", scale);
  if (const float softcap = d.attributes().get_float("softcap", 0); softcap > 0) attributes.set("softcap", softcap);
  return attributes;
}

std::vector<OpDef> microsoft_attention_ops() {
  return {group_query_attention_op(),    multi_head_attention_op(), rotary_op(),
          sectioned_rotary_op(),         sparse_attention_op(),     attention_op(),
          decoder_masked_attention_op(), quantized_attention_op(),  quantized_embed_norm_op()};
}

namespace {

/// Repeats each head of x [batch, length, heads * size] so that there are `count` heads. Copies of a head are adjacent. `heads`, `size` and
/// `count` are int64[1] tensors.
ValueId repeat_heads(NodeWriter& w, ValueId x, ValueId heads, ValueId size, ValueId count) {
  const ValueId one = w.ints({1}), times = w.op("Div", {count, heads});
  const ValueId leading = w.op("Shape", {x}, {{"end", int64_t{2}}});
  const ValueId apart = w.op("Reshape", {x, joined(w, {leading, heads, one, size})}, {{"allowzero", int64_t{1}}});
  const ValueId repeated = w.op("Expand", {apart, joined(w, {one, one, one, times, one})});
  return w.op("Reshape", {repeated, joined(w, {leading, w.op("Mul", {count, size})})}, {{"allowzero", int64_t{1}}});
}

/// Returns true if there are, or may be, fewer heads of keys than of values. A key has as many features as a query, so the last extent of
/// the keys tells their number of heads.
bool shares_keys(const Decomposition& d, int64_t q_heads, int64_t kv_heads) {
  const int64_t queries = d.extent(d.in(0), 2), keys = d.extent(d.in(1), 2), size = queries / q_heads;
  if (queries < 0 || keys < 0) return kv_heads > 1;
  return size > 0 && keys >= size && keys % size == 0 && keys / size < kv_heads && kv_heads % (keys / size) == 0;
}

}  // namespace

// Decomposes to ONNX's LinearAttention, or to WindowedLinearAttention if `state_window` is set. Several heads of values may share one head
// of queries and keys.
void decompose_linear_attention(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < 6; ++i) inputs.push_back(d.in(i));
  Attributes attributes = d.copied({"chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"});
  const int64_t q_heads = d.attributes().get_int("q_num_heads"), kv_heads = d.attributes().get_int("kv_num_heads");
  const bool repeats_queries = q_heads > 0 && kv_heads > q_heads && kv_heads % q_heads == 0;
  const bool repeats_keys = q_heads > 0 && shares_keys(d, q_heads, kv_heads);
  if (repeats_queries || repeats_keys) {
    const ValueId heads = d.ints({q_heads}), count = d.ints({kv_heads}), size = d.op("Div", {extents(d, d.in(0), 2), heads});
    if (repeats_keys) inputs[1] = repeat_heads(d, d.in(1), d.op("Div", {extents(d, d.in(1), 2), size}), size, count);
    if (repeats_queries) inputs[0] = repeat_heads(d, d.in(0), heads, size, count), attributes.set("q_num_heads", kv_heads);
  }
  const int64_t window = d.attributes().get_int("state_window", 0);
  if (window != 0) attributes.set("state_window", window);
  const auto y = window == 0 ? d.op_n("LinearAttention", std::move(inputs), 2, std::move(attributes))
                             : d.op_n("WindowedLinearAttention", std::move(inputs), 2, std::move(attributes), "treadle");
  d.give(0, y[0]);
  d.give(1, y[1]);
  d.finish();
}

}  // namespace treadle::ops
