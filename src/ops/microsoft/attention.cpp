#include "ops/microsoft/attention.h"

#include "ops/microsoft/microsoft.h"

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

int known_rank(const Decomposition& d, ValueId value, std::string_view name) {
  const int rank = d.rank(value);
  if (rank < 0) throw Error(ErrorCode::not_implemented, fmt::format("{} must be of known rank", name));
  return rank;
}

ValueId extents(Decomposition& d, ValueId x, int64_t axis, int64_t count) {
  return d.op("Shape", {x}, {{"start", axis}, {"end", axis + count}});
}

ValueId joined(Decomposition& d, std::vector<ValueId> parts, int64_t axis) { return d.op("Concat", std::move(parts), {{"axis", axis}}); }

ValueId sliced(Decomposition& d, ValueId x, ValueId begin, ValueId end, int64_t axis) {
  return d.op("Slice", {x, begin, end, d.ints({axis})});
}

ValueId integer(Decomposition& d, int64_t number) { return d.constant(Tensor::scalar<int64_t>(number)); }

ValueId counted(Decomposition& d, ValueId length) {
  return d.op("Range", {integer(d, 0), d.op("Reshape", {length, d.ints({})}), integer(d, 1)});
}

ValueId split_heads(Decomposition& d, ValueId x, int64_t heads) {
  ValueId split = d.op("Reshape", {x, d.ints({0, 0, heads, -1})});
  return d.op("Transpose", {split}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

ValueId merge_heads(Decomposition& d, ValueId x) {
  ValueId rows = d.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  return d.op("Reshape", {rows, d.ints({0, 0, -1})});
}

ValueId added_mask(Decomposition& d, ValueId keep, ValueId like) {
  return d.op("Where", {keep, d.scalar(0, like), d.scalar(d.attributes().get_float("mask_filter_value", -10000.0F), like)});
}

ValueId padding_mask(Decomposition& d, ValueId mask, ValueId q, ValueId num_keys, bool starts, std::string_view name) {
  if (mask == kNoValue) return kNoValue;
  const int rank = known_rank(d, mask, name);
  ValueId keep;
  if (rank == 1) {
    ValueId lengths = d.cast(mask, DType::int64), batch = extents(d, q, 0), keys = counted(d, num_keys);
    auto column = [&](ValueId x) { return d.op("Unsqueeze", {x, d.ints({1, 2, 3})}); };
    keep = d.op("Less", {keys, column(sliced(d, lengths, d.ints({0}), batch, 0))});
    if (starts) {  // the ends, then the starts: 2 * batch elements
      ValueId twice = d.op("Mul", {batch, d.ints({2})}),
              zeros = d.op("ConstantOfShape", {batch}, {{"value", Datum(Tensor::vector<int64_t>(std::vector<int64_t>{0}))}});
      ValueId second = sliced(d, joined(d, {sliced(d, lengths, batch, twice, 0), zeros}), d.ints({0}), batch, 0);
      ValueId first = d.op("Where", {d.op("Equal", {extents(d, mask, 0), twice}), second, zeros});
      keep = d.op("And", {keep, d.op("GreaterOrEqual", {keys, column(first)})});
    }
  } else if (rank == 2 || rank == 3) {
    keep = d.op("Unsqueeze", {d.op("Greater", {mask, d.constant(Tensor::scalar<int32_t>(0))}), rank == 2 ? d.ints({1, 2}) : d.ints({1})});
    // A mask that is too short would mask what it does not name.
    keep = d.op("Expand", {keep, joined(d, {d.ints({1, 1, 1}), num_keys})});
  } else if (rank == 4 && starts) {  // of as many queries and keys as there may be: the rows and columns of those that there are
    const ValueId num_queries = extents(d, q, 1), first = d.op("Sub", {num_keys, num_queries});
    const ValueId own = sliced(d, sliced(d, mask, first, num_keys, 2), d.ints({0}), num_keys, 3);
    keep = d.op("Greater",
                {d.op("Reshape", {own, joined(d, {d.ints({0, 1}), num_queries, num_keys})}), d.constant(Tensor::scalar<int32_t>(0))});
  } else {
    throw Error(ErrorCode::not_implemented, fmt::format("{} of rank {} is not implemented", name, rank));
  }
  return added_mask(d, keep, q);
}

ValueId both(Decomposition& d, ValueId a, ValueId b) {
  if (a == kNoValue) return b;
  return b == kNoValue ? a : d.op("Add", {a, b});
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

}  // namespace treadle::ops
