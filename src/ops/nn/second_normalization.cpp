// Builds the second derivative of a normalization from ordinary nodes.
#include "ops/nn/second_normalization.h"

#include "ops/gradients.h"

namespace treadle::ops::gradients {

// The node to be differentiated a second time computes dX = r P(a), dscale = sum dY xhat and dbias = sum dY, where xhat = (x - mean) r,
// r = 1 / std, a = dY scale and P(v) = v - mean(v) - xhat mean(v xhat). P is symmetric: if v is the gradient of xhat, that of x is r P(v).
// Let u, p and q be the incoming gradients of dX, dscale and dbias. The resulting gradients are:
//   of dY     scale r P(u) + p xhat + q
//   of scale  sum dY r P(u)
//   of xhat   h = dY p - r (u mean(a xhat) + a mean(u xhat)), and through r, whose derivative is -r^2 xhat / n:
//   of x      r P(h) - r xhat mean(u dX)
std::vector<ValueId> second_normalization(GradientContext& g, const std::vector<int64_t>& axes, bool centered, ValueId scale) {
  const ValueId dy = g.input(0), x = g.input(1), u = g.grad_output(0);
  auto mean = [&](ValueId value) { return g.op("ReduceMean", {value, g.ints(axes)}); };
  auto spread = [&](ValueId flow) { return flow == kNoValue ? flow : g.reshape_like(flow, scale); };
  const ValueId p = spread(g.grad_output(1)), q = spread(g.grad_output(2));
  const ValueId epsilon = g.scalar(static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)), x);
  const ValueId center = centered ? g.sub(x, mean(x)) : x;
  const ValueId r = g.op("Reciprocal", {g.op("Sqrt", {g.add(mean(g.mul(center, center)), epsilon)})}), xhat = g.mul(center, r);
  auto projected = [&](ValueId value) {
    const ValueId along = g.mul(xhat, mean(g.mul(value, xhat)));
    return g.mul(r, g.sub(centered ? g.sub(value, mean(value)) : value, along));
  };
  auto plus = [&](ValueId a, ValueId b) { return a == kNoValue ? b : g.add(a, b); };
  ValueId into_dy = kNoValue, into_scale = kNoValue, into_x = kNoValue, h = kNoValue;
  if (u != kNoValue) {
    const ValueId a = g.mul(dy, scale), flow = projected(u);
    into_dy = g.mul(scale, flow);
    into_scale = g.reshape_like(g.unbroadcast(g.mul(dy, flow), scale), g.input(2));
    h = g.neg(g.mul(r, g.add(g.mul(u, mean(g.mul(a, xhat))), g.mul(a, mean(g.mul(u, xhat))))));
    into_x = g.neg(g.mul(g.mul(r, xhat), mean(g.mul(u, g.output(0)))));
  }
  if (p != kNoValue) {
    into_dy = plus(into_dy, g.mul(p, xhat));
    h = plus(h, g.mul(dy, p));
  }
  if (q != kNoValue) into_dy = into_dy == kNoValue ? expand_like(g, q, dy) : g.add(into_dy, q);
  if (h != kNoValue) into_x = plus(into_x, projected(h));
  return {into_dy, into_x, into_scale};
}

}  // namespace treadle::ops::gradients
