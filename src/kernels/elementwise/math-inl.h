// Transcendental functions on float32 vectors, compiled for each instruction set (Highway's foreach_target). Errors are relative to the
// exact value. The polynomials and rational functions are minimax fits of the relative error, made for this library by Remez and Lawson
// iterations.
#if defined(TREADLE_KERNELS_ELEMENTWISE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_ELEMENTWISE_MATH_INL_H_
#undef TREADLE_KERNELS_ELEMENTWISE_MATH_INL_H_
#else
#define TREADLE_KERNELS_ELEMENTWISE_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "kernels/bounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Rounds x * factor to the nearest integer. Returns it as a float, and in the low bits of `bits`: adding 1.5 * 2^23 drops the fraction.
/// `bias` is added only to the bits. @pre |x * factor| < 2^22
template <class D, class V = hn::Vec<D>>
HWY_INLINE V nearest_integer(D d, V x, float factor, int32_t bias, hn::Vec<hn::RebindToSigned<D>>& bits) {
  const V magic = hn::Set(d, 12582912.0f + static_cast<float>(bias));
  const V shifted = hn::MulAdd(x, hn::Set(d, factor), magic);
  bits = hn::BitCast(hn::RebindToSigned<D>(), shifted);
  return hn::Sub(shifted, magic);
}

/// Returns exp(x) / 2^n for the integer n that is nearest to x / ln 2. The low bits of `bits` contain n + 127.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_mantissa(D d, V x, hn::Vec<hn::RebindToSigned<D>>& bits) {
  const V n = nearest_integer(d, x, 1.44269504088896341f, 127, bits);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);  // ln 2 in two parts; the first ends in zero bits, so n times it is exact
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  V p = hn::Set(d, 0.0013814467059326511f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.0083687804111805336f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041668394210893869f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666520107819589f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999993412501566f));
  return hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(d, 1.0f));
}

/// Returns exp(x) 2^kExponent with an error of at most 1 ulp. Saturates to 0 and infinity, keeps subnormal results and NaN. kExponent is 0
/// or -1.
template <int kExponent = 0, class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Beyond these bounds, the result is 0 or infinity anyway. The clamp keeps the exponent in range, and it keeps NaN.
  x = at_most(hn::Set(d, 90.0f), at_least(hn::Set(d, -104.5f), x));
  hn::Vec<decltype(di)> bits;
  const V p = exp_mantissa(d, x, bits);
  // Multiplies by 2^n in two steps, as 2^128 and 2^-150 are not normal numbers. `bits` contains 0x4b400000 (1.5 * 2^23) plus n + 127.
  bits = hn::Add(bits, hn::Set(di, kExponent));
  const auto n = hn::Sub(bits, hn::Set(di, 0x4b400000 + 127));
  const auto half = hn::ShiftRight<1>(n);
  const V scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, hn::Set(di, 127))));
  const V scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(bits, half)));
  return hn::Mul(hn::Mul(p, scale1), scale2);
}

/// Returns exp(x) for x <= 0 with an error of at most 1 ulp; 0 below -87.33, where results are subnormal. Keeps NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_negative(D d, V x) {
  hn::Vec<hn::RebindToSigned<D>> bits;
  const V p = exp_mantissa(d, x, bits);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33f)), hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(bits))));
}

/// Returns 1 + exp(-x) with a relative error of 3e-7. A single factor 2^n suffices: values of exp below 2^-126 do not affect the sum, and
/// 2^n is infinity for the largest n. The polynomial has one term less than that of exp_mantissa(), so dividing by the result takes hardly
/// longer than the division alone.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V one_plus_exp_of_negated(D d, V x) {
  x = at_most(hn::Set(d, 87.0f), at_least(hn::Set(d, -89.0f), x));
  hn::Vec<hn::RebindToSigned<D>> bits;
  const V n = nearest_integer(d, x, -1.44269504088896341f, 127, bits);
  const V r = hn::MulAdd(n, hn::Set(d, 1.42860682030941723e-6f), hn::MulAdd(n, hn::Set(d, 0.693145751953125f), x));
  V p = hn::Set(d, -0.008290305733680725f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.0418979749083519f));
  p = hn::MulAdd(p, r, hn::Set(d, -0.1666763722896576f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.4999915063381195f));
  p = hn::MulAdd(p, r, hn::Set(d, -0.9999997019767761f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::MulAdd(p, hn::BitCast(d, hn::ShiftLeft<23>(bits)), hn::Set(d, 1.0f));
}

/// Returns 1 / (1 + exp(-x)) with an error of 2 ulp for x > 0 and 4 ulp for x < 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  return hn::Div(hn::Set(d, 1.0f), one_plus_exp_of_negated(d, x));
}

/// Clamps to [-1, 1]. Quotients of polynomials may exceed 1 by two ulp, and functions applied to them (root, arc sine) would then give NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V within_one(D d, V y) {
  return at_most(hn::Set(d, 1.0f), at_least(hn::Set(d, -1.0f), y));
}

/// Returns tanh(x) with a relative error of 2.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  const auto saturated = hn::Gt(hn::Abs(x), hn::Set(d, 9.01f));  // because tanh(9.01) rounds to 1
  const V sign = hn::CopySignToAbs(hn::Set(d, 1.0f), x);
  x = at_most(hn::Set(d, 9.02f), at_least(hn::Set(d, -9.02f), x));
  const V t = hn::Mul(x, x);
  V p = hn::Set(d, 1.3322385659336745e-8f);
  p = hn::MulAdd(p, t, hn::Set(d, 2.0585974113752015e-5f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.0034941892878121989f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.13379848890410549f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.99999997918971492f));
  V q = hn::Set(d, 7.7634074964628096e-7f);
  q = hn::MulAdd(q, t, hn::Set(d, 0.0003283343848173852f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.025871664161043996f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.46713164149505475f));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0f));
  return hn::IfThenElse(saturated, sign, within_one(d, hn::Div(hn::Mul(x, p), q)));
}

/// Returns erf(x) with a relative error of 3e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  const auto saturated = hn::Gt(hn::Abs(x), hn::Set(d, 3.92f));  // because erf(3.92) rounds to 1
  const V sign = hn::CopySignToAbs(hn::Set(d, 1.0f), x);
  x = at_most(hn::Set(d, 3.925f), at_least(hn::Set(d, -3.925f), x));
  const V t = hn::Mul(x, x);
  V p = hn::Set(d, 2.0417447990648601e-6f);
  p = hn::MulAdd(p, t, hn::Set(d, 0.00028476195450415529f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.003778847591280883f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.05278802757249029f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.1907707952328636f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.1283791456804152f));
  V q = hn::Set(d, 3.7999133655437608e-5f);
  q = hn::MulAdd(q, t, hn::Set(d, 0.0011649676881647889f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.01499600353958993f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.11425164340717782f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.50239894175726899f));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0f));
  return hn::IfThenElse(saturated, sign, within_one(d, hn::Div(hn::Mul(x, p), q)));
}

/// Returns the natural logarithm with an error of 1 ulp; -infinity at 0, NaN below 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto subnormal = hn::Lt(x, hn::Set(d, 1.17549435e-38f));
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 8388608.0f)), x);
  // Splits x into 2^e and a mantissa from sqrt(1/2) to sqrt(2): subtracting the bits of sqrt(1/2) makes the exponent change there.
  const auto bits = hn::BitCast(di, scaled);
  const auto offset = hn::Set(di, 0x3f3504f3);
  const auto e = hn::ShiftRight<23>(hn::Sub(bits, offset));
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const V n = hn::Sub(hn::ConvertTo(d, e), hn::IfThenElseZero(subnormal, hn::Set(d, 23.0f)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  V p = hn::Set(d, 0.06746651523364135f);
  p = hn::MulAdd(p, f, hn::Set(d, -0.11675654570782283f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.11888158846950967f));
  p = hn::MulAdd(p, f, hn::Set(d, -0.1240558824163557f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.14219552732485368f));
  p = hn::MulAdd(p, f, hn::Set(d, -0.16667995904872702f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.20002118642565147f));
  p = hn::MulAdd(p, f, hn::Set(d, -0.25000009598317472f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.3333331260429507f));
  const V f2 = hn::Mul(f, f);
  V y = hn::Mul(hn::Mul(p, f), f2);
  y = hn::MulAdd(n, hn::Set(d, 1.42860682030941723e-6f), y);
  y = hn::NegMulAdd(f2, hn::Set(d, 0.5f), y);
  y = hn::Add(f, y);
  y = hn::MulAdd(n, hn::Set(d, 0.693145751953125f), y);
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V zero = hn::Zero(d);
  y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  // The comparison x >= 0 is false for negative x and for NaN.
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

/// Reduces the argument of trigonometric functions: x = n * pi / 2 + r with |r| <= pi / 4; the low bits of `bits` hold n. pi / 2 is split
/// into four parts, the first three of 12 bits, so that n * part is exact even without FMA. kMaxReducedAngle keeps n below 2^12.
constexpr float kMaxReducedAngle = 6400.0f;
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reduce_angle(D d, V x, hn::Vec<hn::RebindToSigned<D>>& bits) {
  const V n = nearest_integer(d, x, 0.636619772367581343f, 0, bits);
  V r = hn::NegMulAdd(n, hn::Set(d, 1.5703125f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 4.837512969970703e-4f), r);
  r = hn::NegMulAdd(n, hn::Set(d, 7.549533620476723e-8f), r);
  return hn::NegMulAdd(n, hn::Set(d, 2.5633440682570896e-12f), r);
}

/// Returns y, but fn(x) of the C library in lanes where |x| > kMaxReducedAngle or x is NaN.
template <class D, class Fn, class V = hn::Vec<D>>
HWY_INLINE V replace_far(D d, V x, V y, Fn fn) {
  const auto far = hn::Not(hn::Le(hn::Abs(x), hn::Set(d, kMaxReducedAngle)));
  if (hn::AllFalse(d, far)) return y;
  HWY_ALIGN float angles[hn::MaxLanes(d)], values[hn::MaxLanes(d)];
  hn::Store(x, d, angles);
  hn::Store(y, d, values);
  for (size_t i = 0; i < hn::Lanes(d); ++i)
    if (!(std::fabs(angles[i]) <= kMaxReducedAngle)) values[i] = fn(angles[i]);
  return hn::Load(d, values);
}

/// Returns sin(x + quarter_turns * pi / 2) with an error of 2 ulp. For larger angles than kMaxReducedAngle, it calls the C library.
template <int kQuarterTurns, class D, class V = hn::Vec<D>>
HWY_INLINE V sine(D d, V x) {
  const hn::RebindToSigned<D> di;
  hn::Vec<decltype(di)> bits;
  const V r = reduce_angle(d, x, bits);
  const V t = hn::Mul(r, r);
  V s = hn::Set(d, -1.9517235341481864e-4f);
  s = hn::MulAdd(s, t, hn::Set(d, 8.332177996635437e-3f));
  s = hn::MulAdd(s, t, hn::Set(d, -0.16666655242443085f));
  s = hn::MulAdd(hn::Mul(s, t), r, r);
  V c = hn::Set(d, 2.4433082217001356e-5f);
  c = hn::MulAdd(c, t, hn::Set(d, -1.3887315290048718e-3f));
  c = hn::MulAdd(c, t, hn::Set(d, 0.04166664555668831f));
  c = hn::MulAdd(hn::Mul(c, t), t, hn::NegMulAdd(t, hn::Set(d, 0.5f), hn::Set(d, 1.0f)));
  const auto quadrant = hn::Add(bits, hn::Set(di, kQuarterTurns));
  const auto odd = hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(di, 1)));
  const V sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  V y = hn::Xor(hn::IfThenElse(odd, c, s), sign);
  // Keeps -0, which the argument reduction turns into +0 (its n * part subtracts +0).
  if constexpr (kQuarterTurns == 0) y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y);
  return replace_far(d, x, y, [](float angle) { return kQuarterTurns == 0 ? std::sin(angle) : std::cos(angle); });
}

/// Returns x t P(t). For an odd function with slope 1, this is all but the first term, x. Coefficients start with the highest power.
template <class D, size_t kCoefficients, class V = hn::Vec<D>>
HWY_INLINE V odd_rest(D d, V x, V t, const float (&coefficients)[kCoefficients]) {
  V p = hn::Set(d, coefficients[0]);
#pragma GCC unroll 8
  for (size_t i = 1; i < kCoefficients; ++i) p = hn::MulAdd(p, t, hn::Set(d, coefficients[i]));
  return hn::Mul(hn::Mul(x, t), p);
}

/// Returns tan(x) with an error of 3 ulp. For larger angles than kMaxReducedAngle, it calls the C library.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tan(D d, V x) {
  const hn::RebindToSigned<D> di;
  hn::Vec<decltype(di)> bits;
  const V r = reduce_angle(d, x, bits);
  const V s = hn::Add(r, odd_rest(d, r, hn::Mul(r, r),
                                  {0.004381681737409605f, 7.885721167655958e-05f, 0.010844006964899195f, 0.021279118140661146f,
                                   0.0540604924137018f, 0.1333265842422141f, 0.33333349892616176f}));
  const auto odd = hn::RebindMask(d, hn::TestBit(bits, hn::Set(di, 1)));
  const V y = hn::Div(hn::IfThenElse(odd, hn::Set(d, -1.0f), s), hn::IfThenElse(odd, s, hn::Set(d, 1.0f)));
  // Keeps -0, for the reason given in sine().
  return replace_far(d, x, hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y), [](float angle) { return std::tan(angle); });
}

/// The common part of asin and acos: asin(v) = v + rest. For |x| up to 1/2, v is |x|; for larger |x|, v is sqrt((1 - |x|) / 2), which
/// equals sin(acos(|x|) / 2). Near 1, the square root preserves the relative precision.
template <class D, class V = hn::Vec<D>>
struct HalvedArc {
  hn::Mask<D> halved;
  V v, rest;
  HWY_INLINE HalvedArc(D d, V x) {
    const V magnitude = hn::Abs(x), half = hn::Set(d, 0.5f);
    halved = hn::Gt(magnitude, half);
    const V t = hn::IfThenElse(halved, hn::NegMulAdd(magnitude, half, half), hn::Mul(magnitude, magnitude));
    v = hn::IfThenElse(halved, hn::Sqrt(t), magnitude);
    rest = odd_rest(d, v, t,
                    {0.03751648541914961f, 0.014438581125975335f, 0.03180772407442661f, 0.04451695462933818f, 0.07500504186246179f,
                     0.16666659991284363f});
  }
};
constexpr float kHalfPi = 1.57079632679489662f, kHalfPiRest = -4.37113883e-8f;  // kHalfPiRest: pi / 2 minus kHalfPi

/// Returns asin(x) with an error of 2 ulp; NaN outside [-1, 1].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V asin(D d, V x) {
  const HalvedArc<D> arc(d, x);
  const V two = hn::Set(d, 2.0f);
  // pi / 2 - 2 v is exact except for the rounding of pi / 2 to float, which kHalfPiRest corrects.
  const V turned = hn::Sub(hn::NegMulAdd(two, arc.v, hn::Set(d, kHalfPi)), hn::MulSub(two, arc.rest, hn::Set(d, kHalfPiRest)));
  return hn::CopySign(hn::IfThenElse(arc.halved, turned, hn::Add(arc.v, arc.rest)), x);
}

/// Returns acos(x) with an error of 2 ulp; NaN outside [-1, 1]. The result is 0, 1 or 2 times pi / 2, minus factor * asin(v), where
/// `factor` is a power of two with a sign.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V acos(D d, V x) {
  const HalvedArc<D> arc(d, x);
  const V one = hn::Set(d, 1.0f), sign = hn::CopySignToAbs(one, x);
  const V factor = hn::IfThenElse(arc.halved, hn::Mul(hn::Set(d, -2.0f), sign), sign);
  const V turns = hn::IfThenElse(arc.halved, hn::Sub(one, sign), one);
  return hn::Sub(hn::NegMulAdd(factor, arc.v, hn::Mul(turns, hn::Set(d, kHalfPi))),
                 hn::MulSub(factor, arc.rest, hn::Mul(turns, hn::Set(d, kHalfPiRest))));
}

/// Returns atan(x) with an error of 2 ulp. Uses 1 / x for |x| > 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan(D d, V x) {
  const V magnitude = hn::Abs(x), one = hn::Set(d, 1.0f);
  const auto beyond = hn::Gt(magnitude, one);
  const V v = hn::Div(hn::IfThenElse(beyond, hn::Set(d, -1.0f), magnitude), hn::IfThenElse(beyond, magnitude, one));
  V rest = odd_rest(d, v, hn::Mul(v, v),
                    {-0.0017936243818964881f, 0.010914618400861846f, -0.031177870651166863f, 0.057957619572133204f, -0.08403451899947277f,
                     0.1095218632470764f, -0.14264241785846485f, 0.19998548294107224f, -0.33333299089451646f});
  rest = hn::Add(rest, hn::IfThenElseZero(beyond, hn::Set(d, kHalfPiRest)));
  return hn::CopySign(hn::Add(hn::IfThenElseZero(beyond, hn::Set(d, kHalfPi)), hn::Add(v, rest)), x);
}

/// Returns sinh(x) with an error of 2 ulp. It uses exp(|x|) / 2, which is finite whenever the result is.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sinh(D d, V x) {
  const V magnitude = hn::Abs(x), e = exp<-1>(d, magnitude);
  const V far = hn::CopySign(hn::Sub(e, hn::Div(hn::Set(d, 0.25f), e)), x);
  const V near = hn::Add(
      x, odd_rest(d, x, hn::Mul(x, x), {2.816951224179692e-06f, 0.00019836159778945255f, 0.008333350058160256f, 0.1666666649756135f}));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 1.0f)), near, far);
}

/// Returns cosh(x) with an error of 2 ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V cosh(D d, V x) {
  const V e = exp<-1>(d, hn::Abs(x));
  return hn::Add(e, hn::Div(hn::Set(d, 0.25f), e));
}

/// Above kFarHyperbolic, asinh(x) and acosh(x) are computed as log(x) + kLog2, since x^2 would overflow above 1.8e19. That is exact enough,
/// as x^2 + 1 and x^2 - 1 round to x^2.
constexpr float kFarHyperbolic = 1e10f, kLog2 = 0.693147180559945309f;

/// Returns asinh(x) with a relative error of 2.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V asinh(D d, V x) {
  const V magnitude = hn::Abs(x), square = hn::Mul(magnitude, magnitude);
  const auto far = hn::Gt(magnitude, hn::Set(d, kFarHyperbolic));
  const V sum = hn::Add(magnitude, hn::Sqrt(hn::Add(square, hn::Set(d, 1.0f))));
  const V y = hn::Add(log(d, hn::IfThenElse(far, magnitude, sum)), hn::IfThenElseZero(far, hn::Set(d, kLog2)));
  const V near = hn::Add(magnitude, odd_rest(d, magnitude, square,
                                             {0.009167713951916928f, -0.01997998546508785f, 0.030012952710680357f, -0.04461325036012402f,
                                              0.07499889282210441f, -0.16666665278432824f}));
  return hn::CopySign(hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.5f)), near, y), x);
}

/// Returns atanh(x) with a relative error of 2.5e-7; infinite at -1 and 1, NaN beyond.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atanh(D d, V x) {
  const V magnitude = hn::Abs(x), one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V y = hn::Mul(half, log(d, hn::Div(hn::Add(one, magnitude), hn::Sub(one, magnitude))));
  const V near = hn::Add(x, odd_rest(d, x, hn::Mul(x, x),
                                     {0.17594246868404356f, 0.024521981454788542f, 0.10282687617798966f, 0.10967182265003049f,
                                      0.14294853011544878f, 0.19999727539931092f, 0.3333333606480437f}));
  return hn::IfThenElse(hn::Lt(magnitude, half), near, hn::CopySign(y, x));
}

/// Returns log(1 + x) for x >= 0 with an error of 2 ulp. The factor x / difference corrects the rounding of 1 + x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log1p_positive(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V u = hn::Add(one, x);
  const V difference = hn::Sub(u, one);
  const V y = hn::Mul(log(d, u), hn::Div(x, difference));
  return hn::IfThenElse(hn::Eq(difference, hn::Zero(d)), x, y);
}

/// Returns acosh(x) with a relative error of 2.5e-7; NaN below 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V acosh(D d, V x) {
  const V y = hn::Sub(x, hn::Set(d, 1.0f)), infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const auto far = hn::Gt(x, hn::Set(d, kFarHyperbolic));
  const V sum = hn::Add(y, hn::Sqrt(hn::Mul(y, hn::Add(y, hn::Set(d, 2.0f)))));
  const V z = hn::Add(log1p_positive(d, hn::IfThenElse(far, x, sum)), hn::IfThenElseZero(far, hn::Set(d, kLog2)));
  const V known = hn::IfThenElse(hn::Eq(x, infinity), infinity, hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
  return hn::IfThenElse(hn::And(hn::Ge(y, hn::Zero(d)), hn::Lt(x, infinity)), z, known);
}

/// Returns log(1 + exp(x)) without overflow.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus(D d, V x) {
  return hn::Add(at_least(hn::Zero(d), x), log1p_positive(d, exp(d, hn::Neg(hn::Abs(x)))));
}

/// Returns x tanh(softplus(x)) = x n / (n + 2) with n = e^x (e^x + 2). Above 20 the quotient is 1, so x is clamped before n overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V mish(D d, V x) {
  const V two = hn::Set(d, 2.0f);
  const V e = exp(d, at_most(hn::Set(d, 20.0f), x));
  const V n = hn::Mul(e, hn::Add(e, two));
  return hn::Mul(x, hn::Div(n, hn::Add(n, two)));
}

/// Returns x * (1 + erf(x / sqrt 2)) / 2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
}

/// Returns the derivative of gelu, F(x) + x F'(x), where F is the normal distribution; absolute error 3e-7. F - 1/2 + x F' is odd, and for
/// x above 6 it differs from 1/2 by at most 4e-8.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_slope(D d, V x) {
  x = at_most(hn::Set(d, 6.0f), at_least(hn::Set(d, -6.0f), x));
  const V t = hn::Mul(x, x);
  V p = hn::Set(d, 1.7046249118763147e-8f);
  p = hn::MulAdd(p, t, hn::Set(d, 9.225488350497349e-7f));
  p = hn::MulAdd(p, t, hn::Set(d, 3.4091927682405845e-5f));
  p = hn::MulAdd(p, t, hn::Set(d, 2.0274036371716866e-4f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.3857318959245548e-2f));
  p = hn::MulAdd(p, t, hn::Set(d, -2.237072242540101e-2f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.7978845311847333f));
  V q = hn::Set(d, 1.3147474291784098e-9f);
  q = hn::MulAdd(q, t, hn::Set(d, 3.38980929274224e-7f));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0307866680001118e-5f));
  q = hn::MulAdd(q, t, hn::Set(d, 2.4532621198421813e-4f));
  q = hn::MulAdd(q, t, hn::Set(d, 3.971535129539726e-3f));
  q = hn::MulAdd(q, t, hn::Set(d, 4.413378797677794e-2f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.3052954191888313f));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0f));
  return hn::Add(hn::Set(d, 0.5f), hn::Div(hn::Mul(x, p), q));
}

/// Returns the tanh approximation of gelu, x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). It equals x sigmoid(2 u), which
/// takes fewer instructions and stays precise where tanh is close to -1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh(D d, V x) {
  const V slope = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.071354816272256f), hn::Set(d, 1.5957691216057308f));
  return hn::Div(x, one_plus_exp_of_negated(d, hn::Mul(x, slope)));
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_ELEMENTWISE_MATH_INL_H_
