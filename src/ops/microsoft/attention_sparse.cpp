// Implements SparseAttention: a GroupQueryAttention whose queries see only some blocks of keys. Layouts (sparse matrices in CSR form) list,
// for each block of queries, the blocks of keys that it sees. Head h uses the layout with index h modulo the number of layouts.
#include <algorithm>
#include <limits>

#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/microsoft/attention.h"
#include "ops/rank_branches.h"
#include "ops/tensor/movement.h"

namespace treadle::ops {
namespace {

enum Input : size_t { kQuery, kKey, kValue, kPastKey, kPastValue, kRows, kColumns, kTotal, kLengths, kCos, kSin };

void decompose_sparse_attention(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const int64_t heads = positive(d, "num_heads"), shared = positive(d, "kv_num_heads"), block = positive(d, "sparse_block_size");
  branch_by_rank(d, {kPastKey}, {4});
  if (d.rank(d.in(kPastKey)) != 4) throw Error(ErrorCode::invalid_model, "past_key is not of rank 4");
  ValueId bias = d.op_n("SparseBlocks", {d.in(kQuery), d.in(kPastKey), d.in(kRows), d.in(kColumns), d.in(kLengths), d.in(kTotal)}, 1,
                        {{"num_heads", heads}, {"sparse_block_size", block}}, "treadle")[0];
  if (d.type(d.in(kQuery)).dtype != DType::float32) bias = d.op("CastLike", {bias, d.in(kQuery)});
  ValueId last = d.op("Sub", {d.in(kLengths), d.constant(Tensor::scalar<int32_t>(1))});
  Attributes attributes = d.copied({"do_rotary", "num_heads", "kv_num_heads", "rotary_interleaved", "scale"});
  attributes.set("kv_num_heads", shared);
  const auto y = d.op_n("GroupQueryAttention",
                        {d.in(kQuery), d.in(kKey), d.in(kValue), d.in(kPastKey), d.in(kPastValue), last, d.in(kTotal), d.in(kCos),
                         d.in(kSin), kNoValue, bias},
                        3, std::move(attributes), kMicrosoft);
  for (size_t i = 0; i < 3; ++i) d.give(i, y[i]);
  d.finish();
}

void infer_sparse_blocks(InferContext& c) {
  if (!c.has_rank(0) || c.rank(0) != 3 || !c.has_rank(1) || c.rank(1) != 4) return c.set_output_dtype(0, DType::float32);
  c.set_output(0, DType::float32, {c.shape(0)[0], c.get_int("num_heads"), c.shape(0)[1], c.shape(1)[2]});
}

// Computes the bias for scores [batch, heads, queries, keys]: 0 in blocks that the layout lists, and -inf in the others.
struct SparseBlocks {
  int64_t batch, length, keys, heads, layouts, blocks, entries, block;

  static SparseBlocks bind(BindContext& c) {
    const Shape &query = c.shape(0), &past = c.shape(1), &rows = c.shape(2), &columns = c.shape(3);
    if (query.rank() != 3 || past.rank() != 4 || rows.rank() != 2 || columns.rank() != 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("query is {}, past_key {}, block_row_indices {}, block_col_indices {}",
                                                           to_string(query), to_string(past), to_string(rows), to_string(columns)));
    SparseBlocks k{query[0], query[1], past[2], c.get_int("num_heads"), rows[0], rows[1] - 1, columns[1], c.get_int("sparse_block_size")};
    if (k.layouts < 1 || k.blocks < 0 || k.heads % k.layouts != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("block_row_indices is {} for {} heads", to_string(rows), k.heads));
    check_equal(columns[0], k.layouts, "layouts of block_col_indices and block_row_indices");
    check_equal(c.num_elements(4), k.batch, "elements of key_total_sequence_lengths and the batch");
    check_equal(c.num_elements(5), 1, "elements of total_sequence_length and 1");
    return k;
  }

  void run(RunContext& c) const {
    auto* y = c.out<float>(0);
    std::fill_n(y, batch * heads * length * keys, -std::numeric_limits<float>::infinity());
    const bool prompt = *c.in<int32_t>(5) == length;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t past = prompt ? 0 : c.in<int32_t>(4)[b] - length;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t s = 0; s < length; ++s) show(c, h % layouts, past + s, y + ((b * heads + h) * length + s) * keys);
    }
  }

 private:
  void show(RunContext& c, int64_t layout, int64_t position, float* scores) const {
    const int32_t *rows = c.in<int32_t>(2) + layout * (blocks + 1), *columns = c.in<int32_t>(3) + layout * entries;
    const int64_t row = position / block;
    if (position < 0 || row >= blocks)
      throw Error(ErrorCode::invalid_argument, fmt::format("the position {} is outside the {} blocks of {} keys", position, blocks, block));
    if (rows[row] < 0 || rows[row] > rows[row + 1] || rows[row + 1] > entries)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("block_row_indices has {} and {} for {} columns", rows[row], rows[row + 1], entries));
    for (int32_t e = rows[row]; e < rows[row + 1]; ++e) {
      const int64_t first = columns[e] * block;
      if (first < 0 || columns[e] >= blocks)
        throw Error(ErrorCode::invalid_argument, fmt::format("block_col_indices has {} of {} blocks", columns[e], blocks));
      if (first < keys) std::fill_n(scores + first, std::min(block, keys - first), 0.0F);
    }
  }
};

}  // namespace

OpDef sparse_blocks_op() {
  constexpr TypeSet kInt32{DType::int32};
  return {.name = "SparseBlocks",
          .domain = "treadle",
          .since = {1},
          .inputs = {{"query", kFloats, "T"},
                     {"past_key", kFloats, "T"},
                     {"block_row_indices", kInt32},
                     {"block_col_indices", kInt32},
                     {"key_total_sequence_lengths", kInt32},
                     {"total_sequence_length", kInt32}},
          .outputs = {{"bias", {DType::float32}}},
          .attributes = {{"num_heads", AttributeDef::Required{}, between(1, INT32_MAX)},
                         {"sparse_block_size", AttributeDef::Required{}, between(1, INT32_MAX)}},
          .infer = infer_sparse_blocks,
          .kernels = {kernel<SparseBlocks>()}};
}

OpDef sparse_attention_op() {
  using Required = AttributeDef::Required;
  constexpr TypeSet kInt32{DType::int32};
  return op("SparseAttention",
            {{"query", kFloats, "T"},
             maybe("key", kFloats, "T"),
             maybe("value", kFloats, "T"),
             {"past_key", kFloats, "T"},
             {"past_value", kFloats, "T"},
             {"block_row_indices", kInt32},
             {"block_col_indices", kInt32},
             {"total_sequence_length", kInt32},
             {"key_total_sequence_lengths", kInt32},
             maybe("cos_cache", kFloats, "T"),
             maybe("sin_cache", kFloats, "T")},
            {{"output", kFloats, "T"}, {"present_key", kFloats, "T"}, {"present_value", kFloats, "T"}},
            {{"do_rotary", int64_t{0}},
             {"kv_num_heads", Required{}},
             {"num_heads", Required{}},
             {"rotary_interleaved", int64_t{0}},
             {"scale"},
             {"sparse_block_size", Required{}}},
            decompose_sparse_attention);
}

}  // namespace treadle::ops
