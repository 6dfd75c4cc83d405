// RotaryEmbedding of com.microsoft: the positions come first, and may be one number for all of the batch.
#include "ops/microsoft_attention.h"

namespace treadle::ops {
namespace {

/// The positions [batch, length] that follow one that is given.
ValueId following(Decomposition& d, ValueId first, ValueId batch, ValueId length) {
  ValueId row = d.op("Add", {counted(d, length), d.op("Reshape", {first, d.ints({1})})});
  return d.op("Expand", {row, joined(d, {batch, length})});
}

void decompose_rotary(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  const int64_t heads = a.get_int("num_heads", 0), rotated = a.get_int("rotary_embedding_dim", 0);
  if (heads < 0 || rotated < 0 || (rotated > 0 && heads == 0))
    throw Error(ErrorCode::invalid_model,
                fmt::format("rotary_embedding_dim is {} and num_heads {}; the first needs the second", rotated, heads));
  if (a.get_float("scale", 1) != 1)
    throw Error(ErrorCode::not_implemented, fmt::format("scale = {} is not implemented", a.get_float("scale")));
  ValueId x = d.in(0), positions = d.in(1);
  const int rank = known_rank(d, x, "input");
  if (rank != 3 && rank != 4) throw Error(ErrorCode::invalid_model, fmt::format("input is of rank {}, not 3 or 4", rank));
  if (known_rank(d, positions, "position_ids") < 2) positions = following(d, positions, extents(d, x, 0), extents(d, x, rank == 4 ? 2 : 1));
  const bool open = rank == 3 && heads == 0;  // the caches' width is that of half a head
  if (open) {
    ValueId size = d.op("Mul", {extents(d, d.in(2), 1), d.ints({2})});
    x = d.op("Reshape", {x, joined(d, {d.ints({0, 0, -1}), size})});
    x = d.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }
  Attributes attributes = d.copied({"interleaved", "rotary_embedding_dim"});
  if (rank == 3 && !open) attributes.set("num_heads", heads);
  ValueId y = d.op("RotaryEmbedding", {x, d.in(2), d.in(3), positions}, std::move(attributes));
  d.give(0, open ? merge_heads(d, y) : y);
  d.finish();
}

}  // namespace

OpDef rotary_op() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
  return op("RotaryEmbedding", {{"input", kTypes, "T"}, {"position_ids", kInt64}, {"cos_cache", kTypes, "T"}, {"sin_cache", kTypes, "T"}},
            {{"output", kTypes, "T"}},
            {{"interleaved", int64_t{0}},
             {"is_packed_batching", int64_t{0}},
             {"num_heads", int64_t{0}},
             {"rotary_embedding_dim", int64_t{0}},
             {"scale", 1.0F}},
            decompose_rotary);
}

}  // namespace treadle::ops
