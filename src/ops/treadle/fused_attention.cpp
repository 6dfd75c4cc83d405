// Implements FusedAttention (treadle): y = softmax(scale Q K^T + mask) V in float32. It is fused from the products, Transposes and Softmax
// that exporters write. Each operand has a layout, so that Transposes around the attention become strides:
//   0: [batch, heads, length, size]; 1: [batch, length, heads, size]; 2 (not for y): one part of [batch, length, parts, heads, size].
//   A float32 mask is added. A boolean mask replaces scores by `masked_value` where it differs from `mask_keeps`.
#include "ops/treadle/fused_attention.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/precision.h"
#include "ops/tensor/movement.h"
#include "ops/treadle/domain.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::AttentionParams;

enum Input : int { kQ, kK, kV, kMask };
constexpr size_t kRanks[] = {4, 4, 5};

int64_t layout_of(const Attributes& attributes, std::string_view name, int64_t last) {
  const int64_t layout = attributes.get_int(name);
  if (layout < 0 || layout > last) throw Error(ErrorCode::invalid_model, fmt::format("{} is {}, not 0 to {}", name, layout, last));
  return layout;
}

template <typename S>
S heads_of(const S& shape, int64_t layout, int operand) {
  const size_t rank = static_cast<size_t>(shape.end() - shape.begin());
  if (rank != kRanks[layout])
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is of rank {}, not {}", "QKV"[operand], rank, kRanks[layout]));
  if (layout == 0) return shape;
  if (layout == 1) return {shape[0], shape[2], shape[1], shape[3]};
  return {shape[0], shape[3], shape[1], shape[4]};
}

void infer(InferContext& c) {
  if (!c.has_rank(kQ) || !c.has_rank(kV)) return c.set_output_dtype(0, c.dtype(kQ));
  SymbolicShape q = attention_heads(c.shape(kQ), c.attributes(), kQ), v = attention_heads(c.shape(kV), c.attributes(), kV);
  if (c.has_input(kMask) && c.has_rank(kMask) && c.rank(kMask) <= 4) {  // the mask may broadcast the scores over batch, heads and rows
    const SymbolicShape& mask = c.shape(kMask);
    for (size_t i = 4 - mask.size(); i < 3; ++i) q[i] = broadcast(q[i], mask[mask.size() + i - 4]);
  }
  if (layout_of(c.attributes(), "y_layout", 1) == 0)
    c.set_output(0, c.dtype(kQ), {q[0], q[1], q[2], v[3]});
  else
    c.set_output(0, c.dtype(kQ), {q[0], q[2], q[1], v[3]});
}

Cost cost(const ShapeContext& c) {
  const Shape& k = c.shape(kK);
  const double keys = static_cast<double>(k[c.get_int("k_layout") == 0 ? 2 : 1]);
  return {4 * static_cast<double>(c.output_shape(0).num_elements()) * keys, c.size_bytes(kQ) + c.size_bytes(kK) + c.size_bytes(kV)};
}

struct Operand {
  Shape heads;
  kernels::HeadStrides strides;
  int64_t offset = 0;
};
Operand operand_of(const BindContext& c, int first, int operand) {
  const Shape& shape = c.shape(first + operand);
  const int64_t layout = attention_layout(c.node().attributes, operand);
  const Shape h = heads_of(shape, layout, operand);
  if (layout < 2) return {h, attention_strides(h, layout), 0};
  const int64_t size = h[3], parts = shape[2], part = c.get_int(kAttentionParts[operand]);
  if (part < 0 || part >= parts) throw Error(ErrorCode::invalid_argument, fmt::format("part {} of {}", part, parts));
  return {h, {h[2] * parts * h[1] * size, size, parts * h[1] * size}, part * h[1] * size};
}

struct FusedAttention {
  AttentionCall call;

  static FusedAttention bind(BindContext& c) {
    FusedAttention a{AttentionCall::bind(c, kQ, /*may_stretch=*/true)};
    if (!a.call.any()) return a;
    a.call.params.bf16 = bf16_form(c.node().attributes);
    c.request_scratch(kernels::attention_scratch_bytes<float>(a.call.params, a.call.max_threads));
    return a;
  }
  void run(RunContext& c) const {
    const AttentionParams& p = call.params;
    if (p.batch * p.q_heads * p.q_length * p.v_head_size == 0) return;
    kernels::AttentionData<float> data = call.data(c, kQ);
    data.y = c.out<float>(0);
    kernels::attention<float>(p, data, c.scratch<void>(), call.max_threads, c.pool());
  }
};

// Returns an operand, transposed from its layout to [batch, heads, length, size].
std::string heads_first(FunctionBody& b, size_t i, std::string_view layout_name, std::string_view part_name) {
  const Attributes& attributes = b.attributes();
  const int64_t layout = attributes.get_int(layout_name);
  std::string x = b.in(i);
  if (layout == 2) x = b.op("Gather", {x, b.constant(Tensor::scalar(attributes.get_int(part_name)))}, {{"axis", int64_t{2}}});
  return layout == 0 ? x : b.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

// Writes attention as ONNX nodes. If query heads share key heads, a Reshape of Q to [batch, kv_heads, shared, length, size] lets MatMul
// broadcast K and V. How many heads share a key head may be known only during the run.
void write_fused_attention(FunctionBody& b) {
  const Attributes& attributes = b.attributes();
  const std::string q = heads_first(b, 0, "q_layout", "q_part"), k = heads_first(b, 1, "k_layout", "k_part"),
                    v = heads_first(b, 2, "v_layout", "v_part");
  auto extent = [&](const std::string& x, int64_t axis) { return b.op("Gather", {b.op("Shape", {x}), b.ints({axis})}); };
  std::string batch = extent(q, 0), heads = extent(q, 1), length = extent(q, 2);
  const std::string kv_heads = extent(k, 1), keys = extent(k, 2);
  auto concat = [&](std::vector<std::string> parts) { return b.op("Concat", std::move(parts), {{"axis", int64_t{0}}}); };
  auto shaped = [&](const std::string& x, std::vector<std::string> extents) {
    return b.op("Reshape", {x, concat(std::move(extents))}, {{"allowzero", int64_t{1}}});
  };
  const std::string shared = b.op("Div", {heads, kv_heads});
  const std::string grouped = shaped(q, {batch, kv_heads, shared, length, extent(q, 3)});
  const std::string two = b.ints({2});
  const std::string k_shared = b.op("Unsqueeze", {k, two}), v_shared = b.op("Unsqueeze", {v, two});
  const std::string turned = b.op("Transpose", {k_shared}, {{"perm", std::vector<int64_t>{0, 1, 2, 4, 3}}});
  std::string scores = b.op("Mul", {b.op("MatMul", {grouped, turned}), b.number(attributes.get_float("scale", 1))});
  scores = shaped(scores, {batch, heads, length, keys});
  if (b.has(3) && attributes.has("masked_value")) {
    const std::string masked = b.number(attributes.get_float("masked_value"));
    scores = attributes.get_int("mask_keeps", 1) != 0 ? b.op("Where", {b.in(3), scores, masked}) : b.op("Where", {b.in(3), masked, scores});
  } else if (b.has(3)) {
    scores = b.op("Add", {scores, b.in(3)});
  }
  // The mask may have broadcast the scores to larger extents.
  if (b.has(3)) batch = extent(scores, 0), heads = extent(scores, 1), length = extent(scores, 2);
  std::string p = b.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (attributes.get_int("nan_to_zero") != 0) p = b.op("Where", {b.op("IsNaN", {p}), b.number(0), p});
  p = shaped(p, {batch, kv_heads, b.op("Div", {heads, kv_heads}), length, keys});
  std::string y = shaped(b.op("MatMul", {p, v_shared}), {batch, heads, length, extent(v, 3)});
  if (attributes.get_int("y_layout") == 1) y = b.op("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  b.give(0, y);
}

}  // namespace

int64_t attention_layout(const Attributes& attributes, int operand) { return layout_of(attributes, kAttentionLayouts[operand], 2); }

SymbolicShape attention_heads(const SymbolicShape& shape, const Attributes& attributes, int operand) {
  return heads_of(shape, attention_layout(attributes, operand), operand);
}

kernels::HeadStrides attention_strides(const Shape& heads, int64_t layout) {
  const int64_t size = heads[3], all = heads[1] * heads[2] * size;
  return layout == 0 ? kernels::HeadStrides{all, heads[2] * size, size} : kernels::HeadStrides{all, size, heads[1] * size};
}

AttentionCall AttentionCall::bind(const BindContext& c, int first, bool may_stretch) {
  const Operand q = operand_of(c, first, kQ), k = operand_of(c, first, kK), v = operand_of(c, first, kV);
  AttentionCall a;
  AttentionParams& p = a.params;
  check_equal(k.heads[0], q.heads[0], "batches of Q and K"), check_equal(v.heads[0], q.heads[0], "batches of Q and V");
  check_equal(v.heads[1], k.heads[1], "heads of K and V"), check_equal(v.heads[2], k.heads[2], "lengths of K and V");
  check_equal(k.heads[3], q.heads[3], "head sizes of Q and K");
  p.batch = q.heads[0], p.q_heads = q.heads[1], p.kv_heads = k.heads[1];
  if (!a.any()) return a;  // no heads: nothing to compute
  if (p.kv_heads < 1 || p.q_heads % p.kv_heads != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} query heads cannot share {} heads of keys", p.q_heads, p.kv_heads));
  p.q_length = q.heads[2], p.kv_length = k.heads[2], p.head_size = q.heads[3], p.v_head_size = v.heads[3];
  p.q = q.strides, p.k = k.strides, p.v = v.strides;
  a.q = q.offset, a.k = k.offset, a.v = v.offset;
  p.scale = static_cast<double>(c.get_float("scale", 1));
  p.empty_rows = c.get_int("nan_to_zero") != 0 ? kernels::EmptyRows::zero_for_nan : kernels::EmptyRows::formula;
  p.mask_length = p.kv_length;
  const int mask = first + kMask;
  a.has_mask = c.has_input(mask);
  if (a.has_mask) {
    a.is_boolean = c.dtype(mask) == DType::boolean;
    p.keeps = c.get_int("mask_keeps", 1) != 0;
    p.masked = static_cast<double>(c.get_float("masked_value", -std::numeric_limits<float>::infinity()));
    a.bind_mask(c.shape(mask), may_stretch);
  }
  p.y = attention_strides({p.batch, p.q_heads, p.q_length, p.v_head_size}, layout_of(c.node().attributes, "y_layout", 1));
  a.max_threads = c.max_threads();
  return a;
}

// Handles a mask that has more indices than the scores along an axis where the scores have the extent 1. Strides become 0, so that the same
// queries and keys are read again for each index of the mask.
void AttentionCall::stretch(int axis, int64_t extent) {
  AttentionParams& p = params;
  if (axis == 0) p.batch = extent, p.q.batch = p.k.batch = p.v.batch = 0;
  if (axis == 1) p.q_heads = extent, p.q.head = 0;
  if (axis == 2) p.q_length = extent, p.q.row = 0;
}

void AttentionCall::bind_mask(const Shape& mask, bool may_stretch) {
  AttentionParams& p = params;
  const int64_t wanted[4] = {p.batch, p.q_heads, p.q_length, p.kv_length};
  int64_t* strides[4] = {&p.mask_batch, &p.mask_head, &p.mask_row, &p.mask_column};
  if (mask.rank() > 4) throw Error(ErrorCode::invalid_argument, fmt::format("the mask is of rank {}, above 4", mask.rank()));
  int64_t step = 1;
  for (int own = mask.rank() - 1, i = 3; own >= 0; --own, --i) {
    if (may_stretch && i < 3 && wanted[i] == 1 && mask[own] != 1)
      stretch(i, mask[own]);
    else if (mask[own] != 1)
      check_equal(mask[own], wanted[i], "extents of the mask and of the scores");
    *strides[i] = mask[own] == 1 ? 0 : step;
    step *= mask[own];
  }
}

kernels::AttentionData<float> AttentionCall::data(RunContext& c, int first) const {
  kernels::AttentionData<float> data;
  data.q = c.in<float>(first + kQ) + q, data.k = c.in<float>(first + kK) + k, data.v = c.in<float>(first + kV) + v;
  if (has_mask && is_boolean) data.keep = c.in<bool>(first + kMask);
  if (has_mask && !is_boolean) data.bias = c.in<float>(first + kMask);
  return data;
}

std::vector<AttributeDef> attention_attributes() {
  return {{"scale", 1.0F},          {"nan_to_zero", int64_t{0}}, {"mask_keeps", int64_t{1}}, {"masked_value"},
          {"q_layout", int64_t{0}}, {"k_layout", int64_t{0}},    {"v_layout", int64_t{0}},   {"y_layout", int64_t{0}},
          {"q_part", int64_t{0}},   {"k_part", int64_t{0}},      {"v_part", int64_t{0}}};
}

std::vector<OpDef> fused_attention_ops() {
  constexpr TypeSet kFloat{DType::float32};
  std::vector<AttributeDef> attributes = attention_attributes();
  attributes.push_back({kPrecision, std::string_view("")});
  return {{.name = "FusedAttention",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"Q", kFloat}, {"K", kFloat}, {"V", kFloat}, {"mask", kFloat | kBool, "", Presence::optional}},
           .outputs = {{"Y", kFloat}},
           .attributes = std::move(attributes),
           .infer = infer,
           .cost = cost,
           .kernels = {kernel<FusedAttention>("tiles", DType::float32)},
           .gradient = fused_attention_gradient,
           .write_function = write_fused_attention,
           .function_opset = [](const Node&) { return 14; }},
          fused_attention_gradient_op()};
}

}  // namespace treadle::ops
