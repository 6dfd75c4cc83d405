// Decomposes fused operators of com.microsoft, which exported optimized models contain, into ONNX operators; also
// SimplifiedLayerNormalization, which such models use in the default domain.
#include <algorithm>
#include <span>
#include <string>

#include "ops/list.h"
#include "ops/microsoft/attention.h"
#include "ops/microsoft/microsoft.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

/// Applies the activation of a fused operator, with the parameters that the node gives. For an empty name, returns x.
ValueId activate(Decomposition& d, ValueId x, std::string_view name, std::span<const float> parameters) {
  if (name.empty()) return x;
  const ScalarFunction* function = find_function(name);
  const bool is_operator = function && function->name == name && function->op_type.empty() && function->domain.empty();
  if (!is_operator) throw Error(ErrorCode::not_implemented, fmt::format("the fused activation \"{}\" is not implemented", name));
  std::vector<ValueId> inputs{x};
  Attributes attributes;
  auto give = [&](const ScalarFunction::Parameter& parameter, size_t i) {
    if (parameter.name.empty() || i >= parameters.size()) return;
    if (parameter.input < 0) return attributes.set(parameter.name, parameters[i]);
    inputs.resize(std::max(inputs.size(), static_cast<size_t>(parameter.input) + 1), kNoValue);
    inputs[static_cast<size_t>(parameter.input)] = d.scalar(parameters[i], d.in(0));
  };
  give(function->a, 0);
  give(function->b, 1);
  return d.op(function->name, std::move(inputs), std::move(attributes));
}

/// Applies the activation that the node's attributes name, with their parameters.
ValueId activate(Decomposition& d, ValueId x) {
  std::vector<float> parameters;
  for (std::string_view name : {"activation_alpha", "activation_beta", "activation_gamma"})
    if (d.attributes().has(name)) parameters.push_back(d.attributes().get_float(name));
  return activate(d, x, d.attributes().get_string("activation"), parameters);
}

/// Returns the permutation for an operand of FusedMatMul: `batch` moves axis 0 behind the other batch axes, `last` swaps the last two axes.
std::vector<int64_t> product_order(int rank, bool batch, bool last) {
  std::vector<int64_t> order;
  for (int i = 0; i < rank; ++i) order.push_back(i);
  if (batch) std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  if (last) std::swap(order[order.size() - 1], order[order.size() - 2]);
  return order;
}

/// Transposes an operand of FusedMatMul by the flags of product_order(). Vectors stay unchanged. If the rank is unknown, batch axes are
/// merged first, so that a Transpose of fixed rank suffices.
ValueId turned(Decomposition& d, ValueId operand, bool batch, bool last) {
  if (!batch && !last) return operand;
  return by_rank(d, {operand}, {0}, {1, kAnyRank}, [&](NodeWriter& w, const std::vector<ValueId>& v) {
    const ValueId x = v[0];
    const int rank = w.rank(x);
    if (rank >= 0 && rank < 2) return std::vector{w.op("Identity", {x})};
    if (rank >= 0) return std::vector{w.op("Transpose", {x}, {{"perm", product_order(rank, batch, last)}})};
    auto extents = [&](int64_t begin, int64_t end) { return w.op("Shape", {x}, {{"start", begin}, {"end", end}}); };
    const ValueId rows = batch ? extents(0, 1) : extents(-2, -1), columns = w.op("Shape", {x}, {{"start", int64_t{-1}}}),
                  others = batch ? extents(1, -1) : extents(0, -2);
    const ValueId count = w.op("ReduceProd", {others}, {{"keepdims", int64_t{1}}});
    const auto reshaped = [&](ValueId y, std::vector<ValueId> parts) {
      return w.op("Reshape", {y, w.op("Concat", std::move(parts), {{"axis", int64_t{0}}})}, {{"allowzero", int64_t{1}}});
    };
    ValueId y = batch ? reshaped(x, {rows, count, columns}) : reshaped(x, {count, rows, columns});
    const std::vector<int64_t> order = !batch ? std::vector<int64_t>{0, 2, 1}
                                       : last ? std::vector<int64_t>{1, 2, 0}
                                              : std::vector<int64_t>{1, 0, 2};
    y = w.op("Transpose", {y}, {{"perm", order}});
    return std::vector{last ? reshaped(y, {others, columns, rows}) : reshaped(y, {others, rows, columns})};
  })[0];
}

void decompose_fused_matmul(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto flag = [&](std::string_view name) { return d.attributes().get_int(name, 0) != 0; };
  ValueId product =
      d.op("MatMul", {turned(d, d.in(0), flag("transBatchA"), flag("transA")), turned(d, d.in(1), flag("transBatchB"), flag("transB"))});
  product = d.scaled(product, d.attributes().get_float("alpha", 1), d.in(0));
  d.give(0, activate(d, product));
  d.finish();
}

void decompose_fused_gemm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId y = d.op("Gemm", {d.in(0), d.in(1), d.in(2)}, d.copied({"alpha", "beta", "transA", "transB"}));
  d.give(0, activate(d, y));
  d.finish();
}

void decompose_fused_conv(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId y = d.op("Conv", {d.in(0), d.in(1), d.in(2)}, d.copied({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}));
  if (d.has(3)) y = d.op("Add", {y, d.in(3)});
  d.give(0, activate(d, y, d.attributes().get_string("activation"), d.attributes().get_floats("activation_params")));
  d.finish();
}

void decompose_gelu(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId x = d.has(1) ? d.op("Add", {d.in(0), d.in(1)}) : d.in(0);
  bool fast = d.node().op_type == "FastGelu";
  d.give(0, d.op("Gelu", {x}, {{"approximate", std::string(fast ? "tanh" : "none")}}));
  d.finish();
}

void decompose_quick_gelu(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Swish", {d.in(0)}, {{"alpha", d.attributes().get_float("alpha", 1.702F)}}));
  d.finish();
}

/// Returns 1 / sqrt(mean(x^2) + epsilon), where the mean is over the axes from `axis` on. These axes keep an extent of 1.
ValueId reciprocal_root_mean_square(Decomposition& d, ValueId x, int64_t axis, int rank, float epsilon) {
  if (axis < -kMaxRank || axis >= kMaxRank) throw Error(ErrorCode::invalid_model, fmt::format("axis is {}", axis));
  ValueId axes;
  if (axis < 0 || rank >= 0) {
    std::vector<int64_t> known;
    for (int64_t i = axis; i < (axis < 0 ? 0 : rank); ++i) known.push_back(i);
    axes = d.ints(std::move(known));
  } else {
    axes = d.op("Range", {integer(d, axis), d.op("Squeeze", {d.rank_of(x)}), integer(d, 1)});
  }
  x = d.cast(x, DType::float32);
  const ValueId mean = d.op("ReduceMean", {d.op("Mul", {x, x}), axes});
  return d.op("Reciprocal", {d.op("Sqrt", {d.op("Add", {mean, d.constant(Tensor::scalar(epsilon))})})});
}

// Computes output 0 = norm(input + skip + bias), and output 3 = the sum that is normalized.
void decompose_skip_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  bool simplified = d.node().op_type == "SkipSimplifiedLayerNormalization";
  size_t bias = simplified ? 3 : 4;
  ValueId sum = d.op("Add", {d.in(0), d.in(1)});
  if (d.has(bias)) sum = d.op("Add", {sum, d.in(bias)});
  const float epsilon = d.attributes().get_float("epsilon", 1e-12F);
  Attributes attributes{{"axis", int64_t{-1}}, {"epsilon", epsilon}};
  if (simplified) {
    d.give(0, d.op("RMSNormalization", {sum, d.in(2)}, attributes));
    const ValueId root = d.wants(1) || d.wants(2) ? reciprocal_root_mean_square(d, sum, -1, -1, epsilon) : kNoValue;
    if (d.wants(1)) d.give(1, d.op("Mul", {root, d.constant(Tensor::scalar(0.0F))}));  // this operator subtracts no mean
    if (d.wants(2)) d.give(2, root);
  } else {
    auto outputs = d.op_n("LayerNormalization", {sum, d.in(2), d.in(3)}, 3, attributes);
    for (size_t i = 0; i < 3; ++i) d.give(i, outputs[i]);
  }
  d.give(3, sum);
  d.finish();
}

void decompose_simplified_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  d.give(0, d.op("RMSNormalization", {d.in(0), d.in(1)}, d.copied({"axis", "epsilon", "stash_type"})));
  if (d.wants(1)) {
    const ValueId x = d.in(0);
    d.give(1, reciprocal_root_mean_square(d, x, a.get_int("axis", -1), d.rank(x), a.get_float("epsilon", 1e-5F)));
  }
  d.finish();
}

void decompose_embed_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId ids = d.in(0), words = d.op("Gather", {d.in(2), ids}), positions;
  if (d.has(8)) {
    positions = d.op("Gather", {d.in(3), d.in(8)});
  } else {  // without position ids: the first `length` rows
    ValueId length = d.op("Shape", {ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    positions = d.op("Slice", {d.in(3), d.ints({0}), length, d.ints({0})});
  }
  ValueId sum = d.op("Add", {words, positions});
  // Without segment ids, all tokens belong to segment 0, as in onnxruntime.
  if (d.has(4)) sum = d.op("Add", {sum, d.op("Gather", {d.in(4), d.has(1) ? d.in(1) : d.ints({0})})});
  d.give(0, d.op("LayerNormalization", {sum, d.in(5), d.in(6)},
                 {{"axis", int64_t{-1}}, {"epsilon", d.attributes().get_float("epsilon", 1e-12F)}}));
  if (d.wants(1)) d.give(1, mask_index(d, ids, 7));
  d.give(2, sum);
  d.finish();
}

void decompose_expand_dims(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Unsqueeze", {d.in(0), d.op("Reshape", {d.cast(d.in(1), DType::int64), d.ints({1})})}));
  d.finish();
}

void decompose_grid_sample(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  Attributes attributes = d.copied({"align_corners", "padding_mode"});
  std::string_view mode = d.attributes().get_string("mode", "bilinear");
  attributes.set("mode", std::string(mode == "bilinear" ? "linear" : mode == "bicubic" ? "cubic" : mode));
  d.give(0, d.op("GridSample", {d.in(0), d.in(1)}, std::move(attributes)));
  d.finish();
}

void decompose_range(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Range", {d.in(0), d.in(1), d.has(2) ? d.in(2) : d.scalar(1, d.in(0))}));
  d.finish();
}

void decompose_pad(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Pad", {d.in(0), d.op("Reshape", {d.in(1), d.ints({-1})}), d.in(2)}, d.copied({"mode"})));
  d.finish();
}

void decompose_trilu(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Trilu", {d.in(0), d.in(1)}, d.copied({"upper"})));
  d.finish();
}

void decompose_unique(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto outputs = d.op_n("Unique", {d.in(0)}, 4, {{"sorted", int64_t{0}}});
  d.give(0, outputs[0]);
  d.give(1, outputs[2]);
  d.give(2, outputs[3]);
  d.finish();
}

std::vector<AttributeDef> product_attributes(std::initializer_list<AttributeDef> more = {}) {
  std::vector<AttributeDef> attributes = {
      {"alpha", 1.0F}, {"transA", int64_t{0}}, {"transB", int64_t{0}}, {"transBatchA", int64_t{0}}, {"transBatchB", int64_t{0}}};
  attributes.insert(attributes.end(), more);
  return attributes;
}

}  // namespace

std::vector<OpDef> microsoft_domain_ops() {
  const Port x{"X", kFloats, "T"}, y{"Y", kFloats, "T"}, a{"A", kFloats, "T"}, b{"B", kFloats, "T"};
  const Port any_x{"X", kAllTensors, "T"}, any_y{"Y", kAllTensors, "T"};
  std::vector<OpDef> ops = {
      op("FusedMatMul", {a, b}, {y}, product_attributes(), decompose_fused_matmul),
      op("TransposeMatMul", {a, b}, {y}, product_attributes(), decompose_fused_matmul),
      op("FusedMatMulActivation", {a, b}, {y},
         product_attributes({{"activation"}, {"activation_alpha"}, {"activation_axis"}, {"activation_beta"}, {"activation_gamma"}}),
         decompose_fused_matmul),
      op("FusedGemm", {a, b, maybe("C", kFloats, "T")}, {y},
         {{"activation"},
          {"activation_alpha"},
          {"activation_beta"},
          {"activation_gamma"},
          {"alpha", 1.0F},
          {"beta", 1.0F},
          {"transA", int64_t{0}},
          {"transB", int64_t{0}}},
         decompose_fused_gemm),
      op("FusedConv", {x, {"W", kFloats, "T"}, maybe("B", kFloats, "T"), maybe("Z", kFloats, "T")}, {y},
         {{"activation"}, {"activation_params"}, {"auto_pad"}, {"dilations"}, {"group"}, {"kernel_shape"}, {"pads"}, {"strides"}},
         decompose_fused_conv),
      op("Gelu", {x}, {y}, {}, decompose_gelu),
      op("BiasGelu", {a, b}, {y}, {}, decompose_gelu),
      op("FastGelu", {x, maybe("bias", kFloats, "T")}, {y}, {}, decompose_gelu),
      op("QuickGelu", {x}, {y}, {{"alpha", 1.702F}}, decompose_quick_gelu),
      op("SkipLayerNormalization",
         {x, {"skip", kFloats, "T"}, {"gamma", kFloats, "T"}, maybe("beta", kFloats, "T"), maybe("bias", kFloats, "T")},
         {y, maybe("mean", kFloats), maybe("inv_std_var", kFloats), maybe("input_skip_bias_sum", kFloats, "T")}, {{"epsilon", 1e-12F}},
         decompose_skip_norm),
      op("SkipSimplifiedLayerNormalization", {x, {"skip", kFloats, "T"}, {"gamma", kFloats, "T"}, maybe("bias", kFloats, "T")},
         {y, maybe("mean", kFloats), maybe("inv_std_var", kFloats), maybe("input_skip_bias_sum", kFloats, "T")}, {{"epsilon", 1e-12F}},
         decompose_skip_norm),
      {.name = "SimplifiedLayerNormalization",
       .since = {1},
       .inputs = {x, {"scale", kFloats}},
       .outputs = {y, maybe("inv_std_var", kFloats)},
       .attributes = {{"axis", int64_t{-1}}, {"epsilon", 1e-5F}, {"stash_type", int64_t{1}}},
       .decompose = decompose_simplified_norm},
      op("EmbedLayerNormalization",
         {{"input_ids", kInt32Or64},
          maybe("segment_ids", kInt32Or64),
          {"word_embedding", kFloats, "T"},
          {"position_embedding", kFloats, "T"},
          maybe("segment_embedding", kFloats, "T"),
          {"gamma", kFloats, "T"},
          {"beta", kFloats, "T"},
          maybe("mask", kInt32Or64),
          maybe("position_ids", kInt32Or64)},
         {y, maybe("mask_index", kInt32Or64), maybe("embedding_sum", kFloats, "T")}, {{"epsilon", 1e-12F}, {"mask_index_type", int64_t{0}}},
         decompose_embed_norm),
      op("ExpandDims", {any_x, {"axis", kInt32Or64}}, {any_y}, {}, decompose_expand_dims),
      op("GridSample", {x, {"Grid", kFloats}}, {y}, {{"align_corners"}, {"mode"}, {"padding_mode"}}, decompose_grid_sample),
      op("Range", {{"start", kNumeric, "T"}, {"limit", kNumeric, "T"}, maybe("delta", kNumeric, "T")}, {{"Y", kNumeric, "T"}}, {},
         decompose_range),
      op("Pad", {any_x, {"pads", kInt64}, maybe("value", kAllTensors, "T")}, {any_y}, {{"mode"}}, decompose_pad),
      op("Trilu", {any_x, maybe("k", kInt64)}, {any_y}, {{"upper"}}, decompose_trilu),
      op("Unique", {any_x}, {any_y, {"idx", kInt64}, {"counts", kInt64}}, {}, decompose_unique),
  };
  for (OpDef& attention : microsoft_attention_ops()) ops.push_back(std::move(attention));
  return ops;
}

}  // namespace treadle::ops
