#include "gpu/elementwise_code.h"

#include <spirv/unified1/GLSL.std.450.h>

#include <initializer_list>
#include <limits>
#include <spirv/unified1/spirv.hpp>

#include "treadle/error.h"

namespace treadle::gpu {
namespace {

using kernels::ChainOp;
using kernels::Unary;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The sum of these two parts is ln 2. The first part has few digits, so its product with an integer n is exact.
constexpr double kLog2High = 0.693145751953125, kLog2Low = 1.42860682030941723e-6;

/// Writes mathematical functions in float32. Their coefficients are those of kernels/elementwise/math-inl.h, which names the sources.
class Math {
 public:
  explicit Math(CodeWriter& shader) : s_(shader) {}

  Value num(double value) { return s_.number(value); }
  Value add(Value a, Value b) { return s_.add(a, b); }
  Value sub(Value a, Value b) { return s_.sub(a, b); }
  Value mul(Value a, Value b) { return s_.mul(a, b); }
  Value div(Value a, Value b) { return s_.div(a, b); }
  Value neg(Value a) { return s_.op(spv::OpFNegate, a.type, {a}); }
  Value fma(Value a, Value b, Value c) { return s_.ext(GLSLstd450Fma, Arithmetic::f32, {a, b, c}); }
  /// Returns n * factor + x, which reduces a range. `factor` has few digits, so the product is exact.
  Value exact(Value n, double factor, Value x) { return s_.exact_mul_add(n, num(factor), x); }
  Value abs(Value a) { return s_.ext(GLSLstd450FAbs, a.type, {a}); }
  Value sqrt(Value a) { return s_.ext(GLSLstd450Sqrt, a.type, {a}); }
  Value round(Value a) { return s_.ext(GLSLstd450RoundEven, a.type, {a}); }
  Value less(Value a, Value b) { return s_.less(a, b); }
  Value at_least(Value bound, Value x) { return s_.select(less(x, bound), bound, x); }  // a NaN stays a NaN
  Value at_most(Value bound, Value x) { return s_.select(less(bound, x), bound, x); }
  Value within(double low, double high, Value x) { return at_most(num(high), at_least(num(low), x)); }
  Value select(Value condition, Value yes, Value no) { return s_.select(condition, yes, no); }
  Value word(Value x) { return s_.op(spv::OpBitcast, Arithmetic::i32, {x}); }
  Value from_word(Value x) { return s_.op(spv::OpBitcast, Arithmetic::f32, {x}); }
  Value whole(int value) { return s_.number(value, Arithmetic::i32); }
  Value shift_left(Value x, int by) { return s_.op(spv::OpShiftLeftLogical, Arithmetic::i32, {x, whole(by)}); }
  Value shift_right(Value x, int by) { return s_.op(spv::OpShiftRightArithmetic, Arithmetic::i32, {x, whole(by)}); }
  Value copy_sign(Value magnitude, Value of) {
    const Value sign = s_.op(spv::OpBitwiseAnd, Arithmetic::i32, {word(of), s_.bits(0x80000000U, Arithmetic::i32)});
    return from_word(s_.op(spv::OpBitwiseOr, Arithmetic::i32, {word(abs(magnitude)), sign}));
  }
  /// Returns a polynomial in t. @param coefficients  from the highest power of t to the lowest
  Value polynomial(Value t, std::initializer_list<double> coefficients) {
    Value p{};
    bool first = true;
    for (const double c : coefficients) {
      p = first ? num(c) : fma(p, t, num(c));
      first = false;
    }
    return p;
  }
  Value odd_rest(Value x, Value t, std::initializer_list<double> coefficients) { return mul(mul(x, t), polynomial(t, coefficients)); }

  Value exp(Value x) {
    x = within(-104.5, 90, x);
    const Value n = round(mul(x, num(1.44269504088896341)));
    const Value r = exact(n, -kLog2Low, exact(n, -kLog2High, x));
    const Value p =
        polynomial(r, {0.0013814467059326511, 0.0083687804111805336, 0.041668394210893869, 0.16666520107819589, 0.49999993412501566});
    const Value mantissa = add(fma(mul(p, r), r, r), num(1));
    // Multiplies by 2^n in two steps, because 2^128 and 2^-150 are not normal numbers.
    const Value whole_n = s_.convert(select(s_.is_nan(n), num(0), n), Arithmetic::i32), half = shift_right(whole_n, 1);
    auto power = [&](Value e) { return from_word(shift_left(add(e, whole(127)), 23)); };
    return mul(mul(mantissa, power(half)), power(sub(whole_n, half)));
  }
  Value log(Value x) {
    const Value subnormal = less(x, num(1.17549435e-38));
    const Value bits = word(select(subnormal, mul(x, num(8388608)), x));
    const Value e = shift_right(sub(bits, whole(0x3f3504f3)), 23);
    const Value f = sub(from_word(sub(bits, shift_left(e, 23))), num(1));
    const Value n = sub(s_.convert(e, Arithmetic::f32), select(subnormal, num(23), num(0)));
    const Value p = polynomial(f, {0.06746651523364135, -0.11675654570782283, 0.11888158846950967, -0.1240558824163557, 0.14219552732485368,
                                   -0.16667995904872702, 0.20002118642565147, -0.25000009598317472, 0.3333331260429507});
    const Value f2 = mul(f, f);
    Value y = exact(n, kLog2Low, mul(mul(p, f), f2));
    y = exact(n, kLog2High, add(f, fma(f2, num(-0.5), y)));
    y = select(s_.equal(x, num(kInfinity)), x, y);
    y = select(s_.equal(x, num(0)), num(-kInfinity), y);
    return select(s_.less_or_equal(num(0), x), y, num(std::numeric_limits<double>::quiet_NaN()));
  }
  Value log1p_positive(Value x) {
    const Value u = add(num(1), x), difference = sub(u, num(1));
    return select(s_.equal(difference, num(0)), x, mul(log(u), div(x, difference)));
  }
  Value sigmoid(Value x) { return div(num(1), add(num(1), exp(neg(x)))); }
  Value tanh(Value x) {
    const Value saturated = less(num(9.01), abs(x)), sign = copy_sign(num(1), x);
    x = within(-9.02, 9.02, x);
    const Value t = mul(x, x);
    const Value p =
        polynomial(t, {1.3322385659336745e-8, 2.0585974113752015e-5, 0.0034941892878121989, 0.13379848890410549, 0.99999997918971492});
    const Value q = polynomial(t, {7.7634074964628096e-7, 0.0003283343848173852, 0.025871664161043996, 0.46713164149505475, 1.0});
    return select(saturated, sign, within(-1, 1, div(mul(x, p), q)));
  }
  Value erf(Value x) {
    const Value saturated = less(num(3.92), abs(x)), sign = copy_sign(num(1), x);
    x = within(-3.925, 3.925, x);
    const Value t = mul(x, x);
    const Value p = polynomial(t, {2.0417447990648601e-6, 0.00028476195450415529, 0.003778847591280883, 0.05278802757249029,
                                   0.1907707952328636, 1.1283791456804152});
    const Value q =
        polynomial(t, {3.7999133655437608e-5, 0.0011649676881647889, 0.01499600353958993, 0.11425164340717782, 0.50239894175726899, 1.0});
    return select(saturated, sign, within(-1, 1, div(mul(x, p), q)));
  }
  /// An angle, split into a whole number of quarter turns (`quarters`) and the `rest`.
  struct Angle {
    Value rest, quarters;
  };
  Angle reduce(Value x) {
    const Value n = round(mul(x, num(0.636619772367581343)));
    // Splits n into two parts of 12 bits. For n up to 2^24, their products with the parts of pi / 2 are exact.
    const Value high = mul(s_.ext(GLSLstd450Trunc, Arithmetic::f32, {mul(n, num(1.0 / 4096))}), num(4096)), low = sub(n, high);
    Value r = x;
    for (const double part : {-1.5703125, -4.837512969970703e-4, -7.549533620476723e-8, -2.5633440682570896e-12})
      r = exact(low, part, exact(high, part, r));
    r = within(-0.7854, 0.7854, r);  // for huge angles, keeps the result in [-1, 1], though the quarter is arbitrary
    const Value bounded = within(-1e9, 1e9, n);
    return {r, s_.convert(select(s_.is_nan(bounded), num(0), bounded), Arithmetic::i32)};
  }
  Value sine(Value x, int turned) {
    const auto [r, quarters] = reduce(x);
    const Value t = mul(r, r);
    const Value s = fma(mul(polynomial(t, {-1.9517235341481864e-4, 8.332177996635437e-3, -0.16666655242443085}), t), r, r);
    const Value c =
        fma(mul(polynomial(t, {2.4433082217001356e-5, -1.3887315290048718e-3, 0.04166664555668831}), t), t, fma(t, num(-0.5), num(1)));
    const Value quadrant = add(quarters, whole(turned));
    auto bit = [&](int b) { return s_.convert(s_.op(spv::OpBitwiseAnd, Arithmetic::i32, {quadrant, whole(b)}), Arithmetic::boolean); };
    const Value y = select(bit(1), c, s);
    const Value signed_y = select(bit(2), neg(y), y);
    return turned == 0 ? select(s_.equal(x, num(0)), x, signed_y) : signed_y;
  }
  Value tan(Value x) {
    const auto [r, quarters] = reduce(x);
    const Value s = add(r, odd_rest(r, mul(r, r),
                                    {0.004381681737409605, 7.885721167655958e-05, 0.010844006964899195, 0.021279118140661146,
                                     0.0540604924137018, 0.1333265842422141, 0.33333349892616176}));
    const Value odd = s_.convert(s_.op(spv::OpBitwiseAnd, Arithmetic::i32, {quarters, whole(1)}), Arithmetic::boolean);
    return select(s_.equal(x, num(0)), x, div(select(odd, num(-1), s), select(odd, s, num(1))));
  }
  static constexpr double kHalfPi = 1.57079632679489662;
  /// The arc sine of |x|. If |x| exceeds 1/2 (`halved`), that of sqrt((1 - |x|) / 2), from which the result is computed.
  struct Arc {
    Value halved, asin;  ///< `asin`: the arc sine of |x|, or of the root if `halved`
  };
  Arc arc(Value x) {
    const Value magnitude = abs(x), halved = less(num(0.5), magnitude);
    const Value t = select(halved, fma(magnitude, num(-0.5), num(0.5)), mul(magnitude, magnitude));
    const Value v = select(halved, sqrt(t), magnitude);
    return {halved, add(v, odd_rest(v, t,
                                    {0.03751648541914961, 0.014438581125975335, 0.03180772407442661, 0.04451695462933818,
                                     0.07500504186246179, 0.16666659991284363}))};
  }
  Value asin(Value x) {
    const auto [halved, y] = arc(x);
    return copy_sign(select(halved, fma(num(-2), y, num(kHalfPi)), y), x);
  }
  Value acos(Value x) {
    const auto [halved, y] = arc(x);
    const Value negative = less(x, num(0)), twice = mul(num(2), y);
    const Value far = select(negative, sub(num(2 * kHalfPi), twice), twice);
    return select(halved, far, sub(num(kHalfPi), select(negative, neg(y), y)));
  }
  Value atan(Value x) {
    const Value magnitude = abs(x), beyond = less(num(1), magnitude);
    const Value v = div(select(beyond, num(-1), magnitude), select(beyond, magnitude, num(1)));
    const Value y =
        add(v, odd_rest(v, mul(v, v),
                        {-0.0017936243818964881, 0.010914618400861846, -0.031177870651166863, 0.057957619572133204, -0.08403451899947277,
                         0.1095218632470764, -0.14264241785846485, 0.19998548294107224, -0.33333299089451646}));
    return copy_sign(add(select(beyond, num(kHalfPi), num(0)), y), x);
  }
  Value half_exp(Value x) { return mul(exp(sub(x, num(0.34657359027997264))), num(0.70710678118654752)); }  // returns half of exp(x)
  Value sinh(Value x) {
    const Value magnitude = abs(x), e = half_exp(magnitude);
    const Value far = copy_sign(sub(e, div(num(0.25), e)), x);
    const Value near =
        add(x, odd_rest(x, mul(x, x), {2.816951224179692e-06, 0.00019836159778945255, 0.008333350058160256, 0.1666666649756135}));
    return select(less(magnitude, num(1)), near, far);
  }
  Value cosh(Value x) {
    const Value e = half_exp(abs(x));
    return add(e, div(num(0.25), e));
  }
  static constexpr double kFar = 1e10, kLog2 = 0.693147180559945309;
  Value asinh(Value x) {
    const Value magnitude = abs(x), square = mul(magnitude, magnitude), far = less(num(kFar), magnitude);
    const Value sum = add(magnitude, sqrt(add(square, num(1))));
    const Value y = add(log(select(far, magnitude, sum)), select(far, num(kLog2), num(0)));
    const Value near = add(magnitude, odd_rest(magnitude, square,
                                               {0.009167713951916928, -0.01997998546508785, 0.030012952710680357, -0.04461325036012402,
                                                0.07499889282210441, -0.16666665278432824}));
    return copy_sign(select(less(magnitude, num(0.5)), near, y), x);
  }
  Value acosh(Value x) {
    const Value y = sub(x, num(1)), far = less(num(kFar), x);
    const Value sum = add(y, sqrt(mul(y, add(y, num(2)))));
    const Value z = add(log1p_positive(select(far, x, sum)), select(far, num(kLog2), num(0)));
    const Value known = select(s_.equal(x, num(kInfinity)), x, num(std::numeric_limits<double>::quiet_NaN()));
    const Value inside = s_.op(spv::OpLogicalAnd, Arithmetic::boolean, {s_.less_or_equal(num(0), y), less(x, num(kInfinity))});
    return select(inside, z, known);
  }
  Value atanh(Value x) {
    const Value magnitude = abs(x);
    const Value y = mul(num(0.5), log(div(add(num(1), magnitude), sub(num(1), magnitude))));
    const Value near = add(x, odd_rest(x, mul(x, x),
                                       {0.17594246868404356, 0.024521981454788542, 0.10282687617798966, 0.10967182265003049,
                                        0.14294853011544878, 0.19999727539931092, 0.3333333606480437}));
    return select(less(magnitude, num(0.5)), near, copy_sign(y, x));
  }
  Value softplus(Value x) { return add(at_least(num(0), x), log1p_positive(exp(neg(abs(x))))); }
  Value mish(Value x) {
    const Value e = exp(at_most(num(20), x)), n = mul(e, add(e, num(2)));
    return mul(x, div(n, add(n, num(2))));
  }
  Value gelu(Value x) {
    const Value half = mul(x, num(0.5));
    return fma(half, erf(mul(x, num(0.70710678118654752))), half);
  }
  Value gelu_slope(Value x) {
    x = within(-6, 6, x);
    const Value t = mul(x, x);
    const Value p = polynomial(t, {1.7046249118763147e-8, 9.225488350497349e-7, 3.4091927682405845e-5, 2.0274036371716866e-4,
                                   1.3857318959245548e-2, -2.237072242540101e-2, 0.7978845311847333});
    const Value q = polynomial(t, {1.3147474291784098e-9, 3.38980929274224e-7, 1.0307866680001118e-5, 2.4532621198421813e-4,
                                   3.971535129539726e-3, 4.413378797677794e-2, 0.3052954191888313, 1.0});
    return add(num(0.5), div(mul(x, p), q));
  }
  Value gelu_tanh(Value x) {
    const Value slope = fma(mul(x, x), num(0.071354816272256), num(1.5957691216057308));
    return div(x, add(num(1), exp(neg(mul(x, slope)))));
  }
  Value expm1_scaled(Value x, Value a) { return mul(a, sub(exp(x), num(1))); }
  Value hard_swish(Value x) { return mul(x, within(0, 1, fma(x, num(1.0 / 6), num(0.5)))); }

 private:
  CodeWriter& s_;
};

}  // namespace

Value write_unary(CodeWriter& shader, Unary function, Value a, Value b, Value x) {
  Math m(shader);
  switch (function) {
    case Unary::none: return x;
    case Unary::relu: return m.at_least(m.num(0), x);
    case Unary::clip: return m.at_most(b, m.at_least(a, x));
    case Unary::leaky_relu: return m.select(m.less(x, m.num(0)), m.mul(a, x), x);
    case Unary::thresholded_relu: return m.select(m.less(a, x), x, m.num(0));
    case Unary::sigmoid: return m.sigmoid(x);
    case Unary::hard_sigmoid: return m.within(0, 1, m.fma(a, x, b));
    case Unary::tanh: return m.tanh(x);
    case Unary::scaled_tanh: return m.mul(a, m.tanh(m.mul(b, x)));
    case Unary::elu: return m.select(m.less(x, m.num(0)), m.expm1_scaled(x, a), x);
    case Unary::selu: return m.mul(b, m.select(m.less(x, m.num(0)), m.expm1_scaled(x, a), x));
    case Unary::celu: {
      const Value below = m.at_most(m.num(0), m.expm1_scaled(m.div(x, a), a));
      return m.add(m.at_least(m.num(0), x), below);
    }
    case Unary::softplus: return m.softplus(x);
    case Unary::softsign: return m.div(x, m.add(m.num(1), m.abs(x)));
    case Unary::affine: return m.fma(a, x, b);
    case Unary::gelu: return m.gelu(x);
    case Unary::gelu_tanh: return m.gelu_tanh(x);
    case Unary::gelu_slope: return m.gelu_slope(x);
    case Unary::silu: return m.mul(x, m.sigmoid(m.mul(a, x)));
    case Unary::hard_swish: return m.hard_swish(x);
    case Unary::mish: return m.mish(x);
    case Unary::exp: return m.exp(x);
    case Unary::log: return m.log(x);
    case Unary::erf: return m.erf(x);
    case Unary::sqrt: return m.sqrt(x);
    case Unary::reciprocal: return m.div(m.num(1), x);
    case Unary::rsqrt: return m.div(m.num(1), m.sqrt(x));
    case Unary::abs: return m.abs(x);
    case Unary::neg: return m.neg(x);
    case Unary::square: return m.mul(x, x);
    case Unary::scaled_hard_swish: return m.fma(a, m.hard_swish(x), b);
    case Unary::sin: return m.sine(x, 0);
    case Unary::cos: return m.sine(x, 1);
    case Unary::tan: return m.tan(x);
    case Unary::asin: return m.asin(x);
    case Unary::acos: return m.acos(x);
    case Unary::atan: return m.atan(x);
    case Unary::sinh: return m.sinh(x);
    case Unary::cosh: return m.cosh(x);
    case Unary::asinh: return m.asinh(x);
    case Unary::acosh: return m.acosh(x);
    case Unary::atanh: return m.atanh(x);
  }
  throw Error(ErrorCode::internal, "a function that shaders do not know");
}

Value write_step(CodeWriter& s, ChainOp step, Value x) {
  switch (step) {
    case ChainOp::floor: return s.ext(GLSLstd450Floor, x.type, {x});
    case ChainOp::ceil: return s.ext(GLSLstd450Ceil, x.type, {x});
    case ChainOp::round: return s.ext(GLSLstd450RoundEven, x.type, {x});
    case ChainOp::sign: return s.select(s.is_nan(x), x, s.ext(GLSLstd450FSign, x.type, {x}));
    case ChainOp::is_nan: return s.is_nan(x);
    case ChainOp::truth: return s.convert(x, Arithmetic::boolean);
    case ChainOp::logical_not: return s.logical_not(s.convert(x, Arithmetic::boolean));
    default: throw Error(ErrorCode::internal, "a step of another number of operands");
  }
}

Value write_binary(CodeWriter& s, ChainOp step, Value x, Value y) {
  const bool is_float = x.type == Arithmetic::f32 || x.type == Arithmetic::f64;
  // The result is NaN if one of the operands is NaN.
  auto extreme = [&](Value condition) {
    const Value chosen = s.select(condition, x, y);
    return is_float ? s.select(s.is_nan(x), x, chosen) : chosen;
  };
  auto logic = [&](uint16_t opcode) {
    return s.op(opcode, Arithmetic::boolean, {s.convert(x, Arithmetic::boolean), s.convert(y, Arithmetic::boolean)});
  };
  switch (step) {
    case ChainOp::add: return s.add(x, y);
    case ChainOp::sub: return s.sub(x, y);
    case ChainOp::reverse_sub: return s.sub(y, x);
    case ChainOp::mul: return s.mul(x, y);
    case ChainOp::div: return s.div(x, y);
    case ChainOp::reverse_div: return s.div(y, x);
    case ChainOp::max: return extreme(s.less(y, x));
    case ChainOp::min: return extreme(s.less(x, y));
    case ChainOp::less: return s.less(x, y);
    case ChainOp::less_or_equal: return s.less_or_equal(x, y);
    case ChainOp::greater: return s.less(y, x);
    case ChainOp::greater_or_equal: return s.less_or_equal(y, x);
    case ChainOp::equal: return s.equal(x, y);
    case ChainOp::logical_and: return logic(spv::OpLogicalAnd);
    case ChainOp::logical_or: return logic(spv::OpLogicalOr);
    default: throw Error(ErrorCode::internal, "a step of another number of operands");
  }
}

// Common exponents are computed by multiplications, roots and divisions, because exp(y log|x|) loses digits for large results.
Value write_pow(CodeWriter& s, Value x, Value y) {
  Math m(s);
  const Value magnitude = m.abs(x), zero = m.num(0), one = m.num(1);
  const Value power = m.exp(m.mul(y, m.log(magnitude)));
  const Value whole = s.equal(y, s.ext(GLSLstd450Floor, Arithmetic::f32, {y}));
  const Value half = m.mul(y, m.num(0.5));
  const Value odd =
      s.op(spv::OpLogicalAnd, Arithmetic::boolean, {whole, s.logical_not(s.equal(half, s.ext(GLSLstd450Floor, Arithmetic::f32, {half})))});
  const Value of_negative = s.select(whole, s.select(odd, m.neg(power), power), m.num(std::numeric_limits<double>::quiet_NaN()));
  Value result = s.select(m.less(x, zero), of_negative, power);
  auto where = [&](double exponent, Value value) { result = s.select(s.equal(y, m.num(exponent)), value, result); };
  const Value square = m.mul(x, x);
  where(1, x);
  where(2, square);
  where(3, m.mul(square, x));
  where(4, m.mul(square, square));
  // pow(x, 0.5) must be 0 for -0 and infinity for -infinity, where sqrt gives -0 and NaN.
  const Value root = s.select(s.equal(magnitude, m.num(kInfinity)), magnitude, s.select(s.equal(x, zero), zero, m.sqrt(x)));
  where(0.5, root);
  where(-1, m.div(one, x));
  where(-0.5, m.div(one, root));
  where(0, one);
  return s.select(s.equal(x, one), one, result);
}

}  // namespace treadle::gpu
