#include "kernels/elementwise/unary_f32.h"

#include <algorithm>

#include "kernels/elementwise/broadcast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/unary_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// NaN stays NaN because x is the second operand of at_least() and at_most().

// exp(x) - 1 without cancellation near 0, using tanh(x / 2) = (exp(x) - 1) / (exp(x) + 1), which is as precise for larger x.
HWY_INLINE V expm1(D d, V x) {
  const V e = exp(d, x);
  const V one = hn::Set(d, 1.0f);
  const V near_zero = hn::Mul(tanh(d, hn::Mul(x, hn::Set(d, 0.5f))), hn::Add(e, one));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, -0.5f)), near_zero, hn::Sub(e, one));
}

HWY_INLINE V elu(D d, V a, V x) {
  const V zero = hn::Zero(d);
  return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(a, expm1(d, at_most(zero, x))), x);
}

#define TREADLE_UNARY(NAME, EXPRESSION)                         \
  struct NAME {                                                 \
    D d;                                                        \
    V a, b;                                                     \
    HWY_INLINE V operator()(V x) const { return (EXPRESSION); } \
  }
#define ZERO hn::Zero(d)
#define ONE hn::Set(d, 1.0f)
TREADLE_UNARY(Relu, at_least(ZERO, x));
TREADLE_UNARY(Clip, at_most(b, at_least(a, x)));
TREADLE_UNARY(LeakyRelu, hn::IfThenElse(hn::Lt(x, ZERO), hn::Mul(a, x), x));
TREADLE_UNARY(ThresholdedRelu, hn::IfThenElseZero(hn::Gt(x, a), x));  // gives 0 for NaN
TREADLE_UNARY(Sigmoid, sigmoid(d, x));
TREADLE_UNARY(HardSigmoid, at_most(ONE, at_least(ZERO, hn::MulAdd(a, x, b))));
TREADLE_UNARY(Tanh, tanh(d, x));
TREADLE_UNARY(ScaledTanh, hn::Mul(a, tanh(d, hn::Mul(b, x))));
TREADLE_UNARY(Elu, elu(d, a, x));
TREADLE_UNARY(Selu, hn::Mul(b, elu(d, a, x)));
TREADLE_UNARY(Celu, hn::IfThenElse(hn::Lt(x, ZERO), hn::Mul(a, expm1(d, hn::Div(x, a))), x));
TREADLE_UNARY(Softplus, softplus(d, x));
TREADLE_UNARY(Softsign, hn::Div(x, hn::Add(ONE, hn::Abs(x))));
TREADLE_UNARY(Affine, hn::MulAdd(a, x, b));
TREADLE_UNARY(Gelu, gelu(d, x));
TREADLE_UNARY(GeluTanh, gelu_tanh(d, x));
TREADLE_UNARY(GeluSlope, gelu_slope(d, x));
TREADLE_UNARY(Silu, hn::Div(x, one_plus_exp_of_negated(d, x)));
TREADLE_UNARY(ScaledSilu, hn::Div(x, one_plus_exp_of_negated(d, hn::Mul(a, x))));
TREADLE_UNARY(HardSwish, hn::Mul(x, at_most(ONE, at_least(ZERO, hn::MulAdd(x, hn::Set(d, 1.0f / 6), hn::Set(d, 0.5f))))));
TREADLE_UNARY(ScaledHardSwish,
              hn::MulAdd(a, hn::Mul(x, at_most(ONE, at_least(ZERO, hn::MulAdd(x, hn::Set(d, 1.0f / 6), hn::Set(d, 0.5f))))), b));
TREADLE_UNARY(Mish, mish(d, x));
TREADLE_UNARY(Exp, exp(d, x));
TREADLE_UNARY(Log, log(d, x));
TREADLE_UNARY(Erf, erf(d, x));
TREADLE_UNARY(Sqrt, hn::Sqrt(x));
TREADLE_UNARY(Reciprocal, hn::Div(ONE, x));
TREADLE_UNARY(Rsqrt, hn::Div(ONE, hn::Sqrt(x)));
TREADLE_UNARY(Abs, hn::Abs(x));
TREADLE_UNARY(Neg, hn::Neg(x));
TREADLE_UNARY(Square, hn::Mul(x, x));
TREADLE_UNARY(Sin, sine<0>(d, x));
TREADLE_UNARY(Cos, sine<1>(d, x));
TREADLE_UNARY(Tan, tan(d, x));
TREADLE_UNARY(Asin, asin(d, x));
TREADLE_UNARY(Acos, acos(d, x));
TREADLE_UNARY(Atan, atan(d, x));
TREADLE_UNARY(Sinh, sinh(d, x));
TREADLE_UNARY(Cosh, cosh(d, x));
TREADLE_UNARY(Asinh, asinh(d, x));
TREADLE_UNARY(Acosh, acosh(d, x));
TREADLE_UNARY(Atanh, atanh(d, x));
#undef ONE
#undef ZERO
#undef TREADLE_UNARY

// The tail is copied to a full vector on the stack, so that an element's result does not depend on its position in the array.
template <class F>
void map(const float* src, float* dst, int64_t n, float a, float b) {
  const D d;
  const F f{d, hn::Set(d, a), hn::Set(d, b)};
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, src + i)), d, dst + i);
  if (i == n) return;
  HWY_ALIGN float tail[hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < n; ++j) tail[j - i] = src[j];
  hn::Store(f(hn::Load(d, tail)), d, tail);
  for (int64_t j = i; j < n; ++j) dst[j] = tail[j - i];
}

void copy(const float* src, float* dst, int64_t n, float, float) {
  if (src != dst) std::copy_n(src, n, dst);
}

}  // namespace

UnaryLoop unary_loop(Unary op, float a) {
  switch (op) {
    case Unary::none: break;
    case Unary::relu: return map<Relu>;
    case Unary::clip: return map<Clip>;
    case Unary::leaky_relu: return map<LeakyRelu>;
    case Unary::thresholded_relu: return map<ThresholdedRelu>;
    case Unary::sigmoid: return map<Sigmoid>;
    case Unary::hard_sigmoid: return map<HardSigmoid>;
    case Unary::tanh: return map<Tanh>;
    case Unary::scaled_tanh: return map<ScaledTanh>;
    case Unary::elu: return map<Elu>;
    case Unary::selu: return map<Selu>;
    case Unary::celu: return map<Celu>;
    case Unary::softplus: return map<Softplus>;
    case Unary::softsign: return map<Softsign>;
    case Unary::affine: return map<Affine>;
    case Unary::gelu: return map<Gelu>;
    case Unary::gelu_tanh: return map<GeluTanh>;
    case Unary::gelu_slope: return map<GeluSlope>;
    case Unary::silu: return a == 1.0f ? map<Silu> : map<ScaledSilu>;
    case Unary::hard_swish: return map<HardSwish>;
    case Unary::scaled_hard_swish: return map<ScaledHardSwish>;
    case Unary::mish: return map<Mish>;
    case Unary::exp: return map<Exp>;
    case Unary::log: return map<Log>;
    case Unary::erf: return map<Erf>;
    case Unary::sqrt: return map<Sqrt>;
    case Unary::reciprocal: return map<Reciprocal>;
    case Unary::rsqrt: return map<Rsqrt>;
    case Unary::abs: return map<Abs>;
    case Unary::neg: return map<Neg>;
    case Unary::square: return map<Square>;
    case Unary::sin: return map<Sin>;
    case Unary::cos: return map<Cos>;
    case Unary::tan: return map<Tan>;
    case Unary::asin: return map<Asin>;
    case Unary::acos: return map<Acos>;
    case Unary::atan: return map<Atan>;
    case Unary::sinh: return map<Sinh>;
    case Unary::cosh: return map<Cosh>;
    case Unary::asinh: return map<Asinh>;
    case Unary::acosh: return map<Acosh>;
    case Unary::atanh: return map<Atanh>;
  }
  return copy;
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(unary_loop);

UnaryLoop unary_loop_of(Unary op, float a) { return HWY_DYNAMIC_DISPATCH(unary_loop)(op, a); }

void unary_f32(Unary op, float a, float b, const float* src, float* dst, int64_t n) {
  if (n > 0) unary_loop_of(op, a)(src, dst, n, a, b);
}

void unary_f32(Unary op, float a, float b, const float* src, float* dst, int64_t n, ThreadPool* pool) {
  parallel_for(pool, n, kElementwiseGrain, [&](int64_t begin, int64_t end) { unary_f32(op, a, b, src + begin, dst + begin, end - begin); });
}

}  // namespace treadle::kernels
#endif
