// Implements QEmbedLayerNormalization, and code shared with EmbedLayerNormalization.
#include "ops/microsoft/attention.h"

namespace treadle::ops {
namespace {

enum Input : size_t { kIds, kSegments, kWords, kPositions, kSegmentRows, kGamma, kBeta, kMask, kScales, kZeroPoints = kScales + 5 };

/// Dequantizes rows of an embedding table after they were gathered. Inputs for the scales and zero points of the five tables are in the
/// order of the tables, which begin at kWords.
ValueId dequantized(Decomposition& d, size_t table, ValueId rows) {
  const size_t which = table - kWords;
  ValueId scale = d.op("Reshape", {d.in(kScales + which), d.ints({})}), zero_point = d.in(kZeroPoints + which);
  if (zero_point != kNoValue) zero_point = d.op("Reshape", {zero_point, d.ints({})});
  return d.op("DequantizeLinear", {rows, scale, zero_point});
}

void decompose_quantized_embed(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  for (size_t other : {size_t{kSegmentRows}, kScales + 2})
    check_together(d, kSegments, other, "segment_ids, segment_embedding and its scale");
  const ValueId ids = d.in(kIds);
  ValueId sum = dequantized(d, kWords, d.op("Gather", {d.in(kWords), ids}));
  sum = d.op("Add", {sum, dequantized(d, kPositions, sliced(d, d.in(kPositions), d.ints({0}), extents(d, ids, 1), 0))});
  if (d.has(kSegments)) sum = d.op("Add", {sum, dequantized(d, kSegmentRows, d.op("Gather", {d.in(kSegmentRows), d.in(kSegments)}))});
  ValueId gamma = dequantized(d, kGamma, d.in(kGamma)), beta = dequantized(d, kBeta, d.in(kBeta));
  d.give(0,
         d.op("LayerNormalization", {sum, gamma, beta}, {{"axis", int64_t{-1}}, {"epsilon", d.attributes().get_float("epsilon", 1e-12F)}}));
  if (d.wants(1)) d.give(1, mask_index(d, ids, kMask));
  d.finish();
}

}  // namespace

ValueId mask_index(Decomposition& d, ValueId ids, size_t mask) {
  if (!d.has(mask))
    return d.op("ConstantOfShape", {extents(d, ids, 0)}, {{"value", Datum(Tensor::vector<int32_t>(std::vector<int32_t>{0}))}});
  const ValueId is_one = d.op("Equal", {d.cast(d.in(mask), DType::int64), integer(d, 1)});
  return d.op("ReduceSum", {d.cast(is_one, DType::int32), d.ints({1})}, {{"keepdims", int64_t{0}}});
}

OpDef quantized_embed_norm_op() {
  constexpr TypeSet kInt32{DType::int32}, kBytes{DType::uint8, DType::int8};
  return op("QEmbedLayerNormalization",
            {{"input_ids", kInt32},
             maybe("segment_ids", kInt32),
             {"word_embedding_quant", kBytes, "T2"},
             {"position_embedding_quant", kBytes, "T2"},
             maybe("segment_embedding", kBytes, "T2"),
             {"gamma_quant", kBytes, "T2"},
             {"beta_quant", kBytes, "T2"},
             maybe("mask", kInt32),
             {"word_embedding_scale", kFloats, "T"},
             {"position_embedding_scale", kFloats, "T"},
             maybe("segment_embedding_scale", kFloats, "T"),
             {"gamma_scale", kFloats, "T"},
             {"beta_scale", kFloats, "T"},
             maybe("word_embedding_zero_point", kBytes, "T2"),
             maybe("position_embedding_zero_point", kBytes, "T2"),
             maybe("segment_embedding_zero_point", kBytes, "T2"),
             maybe("gamma_zero_point", kBytes, "T2"),
             maybe("beta_zero_point", kBytes, "T2")},
            {{"layernorm_out", kFloats, "T"}, maybe("mask_index_out", kInt32)}, {{"epsilon", 1e-12F}}, decompose_quantized_embed);
}

}  // namespace treadle::ops
