// Implements FusedAttentionGrad (treadle): the gradients of FusedAttention, each in the layout of its operand. The scores are recomputed.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/infer.h"
#include "kernels/attention/attention_gradient.h"
#include "ops/gradients.h"
#include "ops/treadle/fused_attention.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

enum Input : int { kDY, kQ, kK, kV, kMask };
/// Set if Q, K and V are parts 0, 1 and 2 of one input. The outputs are then the gradient of this input and dScores, not dQ, dK, dV,
/// dScores.
constexpr std::string_view kJoined = "joined";
bool is_joined(const Attributes& attributes) { return attributes.get_int(kJoined) != 0; }
int num_operands(bool joined) { return joined ? 1 : 3; }

// Returns the layout of an operand's gradient. The gradient of a part is a tensor of its own, so layout 2 becomes 1.
int64_t layout_of_gradient(const Attributes& attributes, int operand) {
  return std::min<int64_t>(attention_layout(attributes, operand), 1);
}

SymbolicShape shape_of(const SymbolicShape& heads, int64_t layout) {
  return layout == 0 ? heads : SymbolicShape{heads[0], heads[2], heads[1], heads[3]};
}

void infer(InferContext& c) {
  const bool joined = is_joined(c.attributes());
  const int scores = num_operands(joined);
  for (int i = 0; i < scores; ++i) {
    if (!c.has_output(i)) continue;
    if (joined)
      c.set_output(i, c.input(kQ));
    else if (!c.has_rank(kQ + i))
      c.set_output_dtype(i, c.dtype(kQ + i));
    else
      c.set_output(i, c.dtype(kQ + i),
                   shape_of(attention_heads(c.shape(kQ + i), c.attributes(), i), layout_of_gradient(c.attributes(), i)));
  }
  if (!c.has_output(scores)) return;
  if (!c.has_rank(kQ) || !c.has_rank(kK)) return c.set_output_dtype(scores, c.dtype(kQ));
  const SymbolicShape q = attention_heads(c.shape(kQ), c.attributes(), 0), k = attention_heads(c.shape(kK), c.attributes(), 1);
  c.set_output(scores, c.dtype(kQ), {q[0], q[1], q[2], k[2]});
}

Cost cost(const ShapeContext& c) {
  const Shape& k = c.shape(kK);
  const double keys = static_cast<double>(k[c.get_int("k_layout") == 0 ? 2 : 1]);
  return {10 * static_cast<double>(c.shape(kDY).num_elements()) * keys,
          2 * (c.size_bytes(kQ) + c.size_bytes(kK) + c.size_bytes(kV)) + c.size_bytes(kDY)};
}

struct FusedAttentionGrad : AttentionGradientCall {
  static FusedAttentionGrad bind(BindContext& c) {
    const FusedAttentionGrad a{AttentionGradientCall::bind(c)};
    if (a.call.any()) c.request_scratch(kernels::attention_gradient_scratch_bytes(a.params, a.call.max_threads));
    return a;
  }
  void run(RunContext& c) const {
    if (!call.any()) return;
    kernels::AttentionGradientData data{.forward = call.data(c, kQ), .dy = c.in<float>(kDY)};
    if (joined) {
      float* all = c.out<float>(0);
      data.dq = all + call.q, data.dk = all + call.k, data.dv = all + call.v;
    } else {
      data.dq = c.out<float>(0), data.dk = c.out<float>(1), data.dv = c.out<float>(2);
    }
    if (shows_scores) data.dscores = c.out<float>(num_operands(joined));
    kernels::attention_gradient(params, data, c.scratch<void>(), call.max_threads, c.pool());
  }
};

/// Returns true if Q, K and V are parts 0, 1 and 2 of the same value.
bool can_be_joined(const GradientContext& g) {
  const Attributes& attributes = g.attributes();
  if (g.input(0) != g.input(1) || g.input(0) != g.input(2)) return false;
  for (int i = 0; i < 3; ++i)
    if (attention_layout(attributes, i) != 2 || attributes.get_int(kAttentionParts[i]) != i) return false;
  const Type& type = g.type(g.input(0));
  return type.has_rank() && type.rank() == 5 && (*type.shape)[2].is_const(3);
}

/// Pads the gradient of one part, [batch, length, heads, size], with zeros in place of the other parts.
ValueId among_parts(GradientContext& g, ValueId part_gradient, int operand) {
  const SymbolicShape whole = *g.type(g.input(static_cast<size_t>(operand))).shape;
  if (!whole[2].is_const())
    throw Error(ErrorCode::not_implemented, fmt::format("the gradient needs the number of parts of {}", "QKV"[operand]));
  const int64_t part = g.attributes().get_int(kAttentionParts[operand]);
  const ValueId one = g.op("Unsqueeze", {part_gradient, g.ints({2})});
  return g.op("Pad", {one, g.ints({part, whole[2].value() - 1 - part}), kNoValue, g.ints({2})});
}

// Checks that the parts cover the input exactly. Otherwise, elements of its gradient would be written twice, never, or out of bounds.
void check_parts(const BindContext& c) {
  for (int i = 0; i < 3; ++i)
    if (attention_layout(c.node().attributes, i) != 2 || c.get_int(kAttentionParts[i]) != i || !(c.shape(kQ + i) == c.shape(kQ)) ||
        c.shape(kQ)[2] != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is not part {} of three of one value", "QKV"[i], i));
}

}  // namespace

AttentionGradientCall AttentionGradientCall::bind(const BindContext& c) {
  const bool joined = is_joined(c.node().attributes);
  AttentionGradientCall a{
      .call = AttentionCall::bind(c, kQ), .params = {}, .joined = joined, .shows_scores = c.has_output(num_operands(joined))};
  for (int i = 0; i < num_operands(joined); ++i)
    if (!c.has_output(i)) throw Error(ErrorCode::invalid_model, fmt::format("output {} is missing: gradients are made together", i));
  if (!a.call.any()) return a;
  const kernels::AttentionParams& p = a.params.forward = a.call.params;
  const Shape y{p.batch, p.q_heads, p.q_length, p.v_head_size};
  const Shape wanted = c.get_int("y_layout") == 0 ? y : Shape{y[0], y[2], y[1], y[3]};
  if (!(c.shape(kDY) == wanted))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dY is {}; attention of these operands makes {}", to_string(c.shape(kDY)), to_string(wanted)));
  if (joined) {
    check_parts(c);
    a.params.dq = p.q, a.params.dk = p.k, a.params.dv = p.v;
  } else {
    const Attributes& attributes = c.node().attributes;
    a.params.dq = attention_strides({p.batch, p.q_heads, p.q_length, p.head_size}, layout_of_gradient(attributes, 0));
    a.params.dk = attention_strides({p.batch, p.kv_heads, p.kv_length, p.head_size}, layout_of_gradient(attributes, 1));
    a.params.dv = attention_strides({p.batch, p.kv_heads, p.kv_length, p.v_head_size}, layout_of_gradient(attributes, 2));
  }
  return a;
}

std::vector<ValueId> fused_attention_gradient(GradientContext& g) {
  const bool joined = can_be_joined(g), of_mask = g.wants(3) && g.type(g.input(3)).dtype == DType::float32;
  Attributes attributes = g.attributes();
  if (joined) attributes.set(kJoined, int64_t{1});
  std::vector<ValueId> inputs{g.grad_output(0)};
  inputs.insert(inputs.end(), g.node().inputs.begin(), g.node().inputs.end());
  const int operands = num_operands(joined);
  const std::vector<ValueId> made =
      g.op_n("FusedAttentionGrad", std::move(inputs), operands + (of_mask ? 1 : 0), std::move(attributes), "treadle");
  std::vector<ValueId> result(4, kNoValue);
  for (int i = 0; i < operands; ++i) {
    const ValueId gradient = made[static_cast<size_t>(i)];
    result[static_cast<size_t>(i)] = joined || attention_layout(g.attributes(), i) < 2 ? gradient : among_parts(g, gradient, i);
  }
  if (of_mask) result[3] = g.unbroadcast(made.back(), g.input(3));
  return result;
}

OpDef fused_attention_gradient_op() {
  constexpr TypeSet kFloat{DType::float32};
  std::vector<AttributeDef> attributes = attention_attributes();
  attributes.push_back({kJoined, int64_t{0}});
  return {.name = "FusedAttentionGrad",
          .domain = "treadle",
          .since = {1},
          .inputs = {{"dY", kFloat}, {"Q", kFloat}, {"K", kFloat}, {"V", kFloat}, {"mask", kFloat | kBool, "", Presence::optional}},
          .outputs = {{"dQ", kFloat},
                      {"dK", kFloat, "", Presence::optional},
                      {"dV", kFloat, "", Presence::optional},
                      {"dScores", kFloat, "", Presence::optional}},
          .attributes = std::move(attributes),
          .infer = infer,
          .cost = cost,
          .kernels = {kernel<FusedAttentionGrad>("blocks", DType::float32)}};
}

}  // namespace treadle::ops
