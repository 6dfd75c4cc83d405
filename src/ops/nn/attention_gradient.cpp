// The gradient of Attention, built from products over the whole matrix of scores.
#include <fmt/format.h>

#include <cmath>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::ops::gradients {
namespace {

/// Values of qk_matmul_output_mode: which scores the output qk_matmul_output shows.
enum Scores : int64_t { kRaw, kCapped, kBiased, kProbabilities };

struct AttentionRule {
  GradientContext& g;
  bool packed = false;                // Q, K and V of rank 3
  int64_t q_heads = 0, kv_heads = 0;  // set if the operands are packed
  Dim features_of_q = 0;              // features of Q, of all heads if packed
  double softcap = 0;

  explicit AttentionRule(GradientContext& context) : g(context) {
    packed = rank_of(g, g.input(0)) == 3;
    const SymbolicShape q = *g.type(g.input(0)).shape;
    if (packed) q_heads = g.attributes().get_int("q_num_heads"), kv_heads = g.attributes().get_int("kv_num_heads");
    softcap = static_cast<double>(g.attributes().get_float("softcap", 0));
    features_of_q = q[packed ? 2 : 3];
  }
  // The attribute `scale`, or 1 / sqrt(head size).
  ValueId scale(ValueId like) {
    if (g.attributes().has("scale")) return g.scalar(static_cast<double>(g.attributes().get_float("scale")), like);
    const int64_t parts = packed ? q_heads : 1;
    if (features_of_q.is_const())
      return g.scalar(1 / std::sqrt(static_cast<double>(std::max<int64_t>(features_of_q.value() / parts, 1))), like);
    const ValueId features = g.op("Shape", {g.input(0)}, {{"start", int64_t{-1}}});
    const ValueId size = g.op("Cast", {g.div(features, g.ints({parts}))}, {{"to", static_cast<int64_t>(g.type(like).dtype)}});
    return g.op("Reciprocal", {g.op("Sqrt", {size})});
  }

  /// qk_matmul_output of this mode. The forward node gives it, if it has this mode or lacks the output; otherwise it is computed again.
  ValueId scores(int64_t mode) {
    if (g.output(3) == kNoValue) g.graph().node(g.node().id).attributes.set("qk_matmul_output_mode", mode);
    if (g.attributes().get_int("qk_matmul_output_mode", 0) == mode) return require_output(g, 3);
    Attributes attributes = g.attributes();
    attributes.set("qk_matmul_output_mode", mode);
    std::vector<ValueId> inputs = g.node().inputs;
    return g.op_n("Attention", std::move(inputs), 4, std::move(attributes))[3];
  }

  // by_head turns [batch, length, heads * size] into [batch, heads, length, size]; as_operand is its inverse.
  ValueId by_head(ValueId x, int64_t heads) {
    return packed ? g.transpose(g.op("Reshape", {x, g.ints({0, 0, heads, -1})}), {0, 2, 1, 3}) : x;
  }
  ValueId as_operand(ValueId dx, ValueId operand) { return packed ? g.reshape_like(g.transpose(dx, {0, 2, 1, 3}), operand) : dx; }

  // Reshapes queries [batch, q heads, ...] to [batch, kv heads, queries per kv head, ...]. Keys get an axis of extent 1 there.
  ValueId grouped(ValueId x) {
    const ValueId shape = g.shape_of(x);
    auto part = [&](int64_t first, int64_t last) { return g.op("Slice", {shape, g.ints({first}), g.ints({last})}); };
    const ValueId split = g.op("Concat", {part(0, 1), heads(), part(2, 4)}, {{"axis", int64_t{0}}});
    return g.op("Reshape", {x, split});
  }
  // The number of key heads, and of query heads per key head.
  ValueId heads() {
    if (packed) return g.ints({kv_heads, q_heads / std::max<int64_t>(kv_heads, 1)});
    auto axis_of = [&](size_t input) { return g.op("Shape", {g.input(input)}, {{"start", int64_t{1}}, {"end", int64_t{2}}}); };
    return g.op("Concat", {axis_of(1), g.div(axis_of(0), axis_of(1))}, {{"axis", int64_t{0}}});
  }
  ValueId one_group(ValueId x) { return g.op("Unsqueeze", {x, g.ints({2})}); }
  ValueId over_group(ValueId x) { return g.reduce_sum(x, {2}, /*keepdims=*/false); }
  ValueId swapped(ValueId x) { return g.transpose(x, {0, 1, 2, 4, 3}); }
  ValueId plus(ValueId a, ValueId b) { return b == kNoValue ? a : a == kNoValue ? b : g.add(a, b); }

  /// Keys or values, appended to those of the past.
  ValueId joined(size_t input, size_t past) {
    const ValueId own = by_head(g.input(input), kv_heads);
    return g.input(past) == kNoValue ? own : g.op("Concat", {g.input(past), own}, {{"axis", int64_t{2}}});
  }
  void part(ValueId total, size_t input, size_t past, Result& result) {
    if (g.input(past) != kNoValue) {
      const ValueId length = g.op("Shape", {g.input(past)}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
      const ValueId end = g.op("Shape", {total}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
      result[past] = g.op("Slice", {total, g.ints({0}), length, g.ints({2})});
      total = g.op("Slice", {total, length, end, g.ints({2})});
    }
    result[input] = as_operand(total, g.input(input));
  }

  ValueId of_mask(ValueId dscores) {
    const ValueId mask = g.input(3);
    const Type type = g.type(mask);
    if (!type.has_rank() || !g.type(dscores).has_rank())
      throw Error(ErrorCode::not_implemented, "the gradient of attn_mask needs its rank");
    // A mask with fewer columns does not depend on the last keys.
    const Dim keys = type.shape->back();
    if (!(keys == g.type(dscores).shape->back()))
      dscores = g.op("Slice", {dscores, g.ints({0}), g.op("Shape", {mask}, {{"start", int64_t{-1}}}), g.ints({-1})});
    return g.unbroadcast(dscores, mask);
  }

  // With raw = scale Q K^T, s = cap(raw) + mask, P = softmax(s): dV = P^T dY, dP = dY V^T, ds = P (dP - sum(dP P)).
  Result differentiate() {
    const int64_t shown = g.attributes().get_int("qk_matmul_output_mode", 0);
    const ValueId dshown = g.grad_output(3);
    const ValueId P = scores(kProbabilities), q = by_head(g.input(0), q_heads), k = joined(1, 4), v = joined(2, 5);
    Result result(6, kNoValue);
    ValueId dP = shown == kProbabilities ? dshown : kNoValue, dv = kNoValue;
    if (g.grad_output(0) != kNoValue) {
      const ValueId dy = grouped(by_head(g.grad_output(0), q_heads));
      dv = over_group(g.op("MatMul", {swapped(grouped(P)), dy}));
      dP = plus(g.reshape_like(g.op("MatMul", {dy, swapped(one_group(v))}), P), dP);
    }
    dv = plus(dv, g.grad_output(2));
    ValueId ds = kNoValue;
    if (dP != kNoValue) ds = g.mul(P, g.sub(dP, g.reduce_sum(g.mul(dP, P), {-1}, /*keepdims=*/true)));
    if (shown == kBiased) ds = plus(ds, dshown);
    if (g.wants(3) && ds != kNoValue) result[3] = of_mask(ds);
    if (shown == kCapped) ds = plus(ds, dshown);
    if (softcap != 0 && ds != kNoValue) {
      const ValueId t = g.div(scores(kCapped), g.scalar(softcap, P));
      ds = g.mul(ds, g.sub(g.scalar(1, t), g.mul(t, t)));
    }
    if (shown == kRaw) ds = plus(ds, dshown);
    ValueId dk = g.grad_output(1);
    if (ds != kNoValue) {
      const ValueId flow = grouped(g.mul(ds, scale(ds)));
      result[0] = as_operand(g.reshape_like(g.op("MatMul", {flow, one_group(k)}), q), g.input(0));
      dk = plus(over_group(g.op("MatMul", {swapped(flow), grouped(q)})), dk);
    }
    if (dk != kNoValue) part(dk, 1, 4, result);
    if (dv != kNoValue) part(dv, 2, 5, result);
    return result;
  }
};

}  // namespace

Result attention(GradientContext& g) {
  if (g.type(g.input(0)).dtype != g.type(g.input(2)).dtype)
    throw Error(ErrorCode::not_implemented, "the gradient of Attention needs Q and V of the same type");
  return AttentionRule(g).differentiate();
}

}  // namespace treadle::ops::gradients
