#include "kernels/elementwise/binary_f32.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/binary_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

struct WholeVectors {
  using Tag = hn::ScalableTag<float>;
};
struct Add : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Add(x, y);
  }
};
struct Sub : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Sub(x, y);
  }
};
struct Mul : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Mul(x, y);
  }
};
struct Div : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Div(x, y);
  }
};
// at_least() and at_most() return the second operand if either is NaN, so a NaN in the first operand is handled separately.
struct Max : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::IfThenElse(hn::Eq(x, x), at_least(x, y), x);
  }
};
struct Min : WholeVectors {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::IfThenElse(hn::Eq(x, x), at_most(x, y), x);
  }
};

// Operators that compute in double take half a vector of floats at a time.
struct InDouble {
  using Tag = hn::Rebind<float, hn::ScalableTag<double>>;
};

// Returns y, but fn(a, b) of the C library in lanes where `rare` is set.
template <class D, class Fn, class V = hn::Vec<D>>
HWY_INLINE V replace_rare(D d, hn::Mask<D> rare, V a, V b, V y, Fn fn) {
  if (hn::AllFalse(d, rare)) return y;
  HWY_ALIGN float as[hn::MaxLanes(d)], bs[hn::MaxLanes(d)], ys[hn::MaxLanes(d)], marks[hn::MaxLanes(d)];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(y, d, ys);
  hn::Store(hn::IfThenElseZero(rare, hn::Set(d, 1.0f)), d, marks);
  for (size_t i = 0; i < hn::Lanes(d); ++i)
    if (marks[i] != 0) ys[i] = fn(as[i], bs[i]);
  return hn::Load(d, ys);
}

// Computes |x|^y = 2^(y log2 |x|) in double, so that nearly all of the error comes from rounding to float. The polynomials are Remez fits
// made for this library, with relative errors 5e-12 and 2e-9. The C library handles zero, infinity and NaN.
struct Pow : InDouble {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V y) const {
    const hn::Rebind<double, D> dd;
    const hn::RebindToSigned<decltype(dd)> di;
    const V infinity = hn::Set(d, std::numeric_limits<float>::infinity()), magnitude = hn::Abs(x);
    const auto usual = hn::And(hn::And(hn::Gt(magnitude, hn::Zero(d)), hn::Lt(magnitude, infinity)), hn::Lt(hn::Abs(y), infinity));

    // log2 |x| = e + log2 m, with m between sqrt(1/2) and sqrt(2). Numbers that are subnormal as floats are normal as doubles.
    const auto bits = hn::BitCast(di, hn::PromoteTo(dd, magnitude));
    const auto e = hn::ShiftRight<52>(hn::Sub(bits, hn::Set(di, 0x3fe6a09e667f3bcd)));
    const auto m = hn::BitCast(dd, hn::Sub(bits, hn::ShiftLeft<52>(e)));
    const auto one = hn::Set(dd, 1.0);
    const auto s = hn::Div(hn::Sub(m, one), hn::Add(m, one)), t = hn::Mul(s, s);
    auto q = hn::Set(dd, 0.34073010661558645);
    q = hn::MulAdd(q, t, hn::Set(dd, 0.41167271878194694));
    q = hn::MulAdd(q, t, hn::Set(dd, 0.5770835849746261));
    q = hn::MulAdd(q, t, hn::Set(dd, 0.9617966733416977));
    q = hn::MulAdd(q, t, hn::Set(dd, 2.8853900817900864));
    // Adding 1.5 * 2^52 leaves an integer in the low bits, and subtracting it gives the integer as a double.
    const auto magic = hn::Set(dd, 6755399441055744.0);
    const auto integer = hn::Sub(hn::BitCast(dd, hn::Add(e, hn::BitCast(di, magic))), magic);
    const auto log2 = hn::MulAdd(q, s, integer);

    // Where this clamp changes w, 2^w is 0 or infinity as a float anyway.
    const auto power = hn::PromoteTo(dd, y);
    const auto w = at_most(hn::Set(dd, 200.0), at_least(hn::Set(dd, -200.0), hn::Mul(power, log2)));
    const auto shifted = hn::Add(w, magic);
    const auto f = hn::Sub(w, hn::Sub(shifted, magic));
    auto p = hn::Set(dd, 0.0001534581194847102);
    p = hn::MulAdd(p, f, hn::Set(dd, 0.0013399931182578285));
    p = hn::MulAdd(p, f, hn::Set(dd, 0.009618488957142913));
    p = hn::MulAdd(p, f, hn::Set(dd, 0.05550328777095578));
    p = hn::MulAdd(p, f, hn::Set(dd, 0.24022646890638122));
    p = hn::MulAdd(p, f, hn::Set(dd, 0.6931472057371951));
    p = hn::MulAdd(p, f, hn::Set(dd, 1.0000000005541672));
    const auto result = hn::BitCast(dd, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<52>(hn::BitCast(di, shifted))));
    V z = to_float(d, result);

    // Powers of a negative base are real only for integer exponents; odd exponents give a negative result.
    const auto negative = hn::Lt(x, hn::Zero(d));
    if (!hn::AllFalse(d, negative)) {
      const V half = hn::Mul(y, hn::Set(d, 0.5f));
      const V sign = hn::IfThenElse(hn::Eq(hn::Round(half), half), hn::Set(d, 1.0f), hn::Set(d, -1.0f));
      const V of_negative = hn::IfThenElse(hn::Eq(hn::Round(y), y), hn::Mul(sign, z), hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
      z = hn::IfThenElse(negative, of_negative, z);
    }
    return replace_rare(d, hn::Not(usual), x, y, z, [](float base, float exponent) { return std::pow(base, exponent); });
  }
};

// Computes a - trunc(a / b) b. In double, a quotient below 2^28 never rounds up to the next integer, and both the product and the
// difference are exact. The C library handles larger quotients, zero, infinity and NaN.
struct Fmod : InDouble {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    const hn::Rebind<double, D> dd;
    const auto x = hn::PromoteTo(dd, a), y = hn::PromoteTo(dd, b);
    const auto quotient = hn::Div(x, y);
    const V rest = hn::CopySign(to_float(d, hn::NegMulAdd(hn::Trunc(quotient), y, x)), a);
    const V near = hn::Abs(to_float(d, quotient)), infinity = hn::Set(d, std::numeric_limits<float>::infinity());
    const auto usual = hn::And(hn::Lt(near, hn::Set(d, 268435456.0f)), hn::Lt(hn::Abs(b), infinity));
    return replace_rare(d, hn::Not(usual), a, b, rest, [](float dividend, float divisor) { return std::fmod(dividend, divisor); });
  }
};

// Uses vectors for strides 0 and 1, and single elements for the remainder. Operators round equally for vectors and single elements.
template <class Op>
void run(const float* a, int64_t sa, const float* b, int64_t sb, float* dst, int64_t n) {
  const typename Op::Tag d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Op op;
  int64_t i = 0;
  if (sa == 1 && sb == 1) {
    for (; i + lanes <= n; i += lanes) hn::StoreU(op(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, dst + i);
  } else if (sa == 1 && sb == 0) {
    const auto scalar = hn::Set(d, *b);
    for (; i + lanes <= n; i += lanes) hn::StoreU(op(d, hn::LoadU(d, a + i), scalar), d, dst + i);
  } else if (sa == 0 && sb == 1) {
    const auto scalar = hn::Set(d, *a);
    for (; i + lanes <= n; i += lanes) hn::StoreU(op(d, scalar, hn::LoadU(d, b + i)), d, dst + i);
  }
  for (; i < n; ++i) hn::StoreU(op(one, hn::LoadU(one, a + i * sa), hn::LoadU(one, b + i * sb)), one, dst + i);
}

}  // namespace

void binary_run(Binary op, const float* a, int64_t sa, const float* b, int64_t sb, float* dst, int64_t n) {
  switch (op) {
    case Binary::add: return run<Add>(a, sa, b, sb, dst, n);
    case Binary::sub: return run<Sub>(a, sa, b, sb, dst, n);
    case Binary::mul: return run<Mul>(a, sa, b, sb, dst, n);
    case Binary::div: return run<Div>(a, sa, b, sb, dst, n);
    case Binary::max: return run<Max>(a, sa, b, sb, dst, n);
    case Binary::min: return run<Min>(a, sa, b, sb, dst, n);
    case Binary::pow: return run<Pow>(a, sa, b, sb, dst, n);
    case Binary::fmod: return run<Fmod>(a, sa, b, sb, dst, n);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(binary_run);

void binary_f32(Binary op, const float* a, int64_t stride_a, const float* b, int64_t stride_b, float* dst, int64_t n) {
  HWY_DYNAMIC_DISPATCH(binary_run)(op, a, stride_a, b, stride_b, dst, n);
}

namespace {

// Handles operands with short contiguous runs: gathers the elements of a block before the operation, unless they are contiguous.
void short_runs_f32(Binary op, const BroadcastPlan<2>& plan, const float* a, const float* b, float* dst, ThreadPool* pool) {
  constexpr int64_t kBlock = 512;
  const float* const operands[2] = {a, b};
  StridedLoop<1> loops[2];
  for (int o = 0; o < 2; ++o) loops[o] = loop_of(plan, o);
  parallel_for(pool, plan.size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    float buffers[2][kBlock];
    for (int64_t n = 0; begin < end; begin += n) {
      n = std::min(kBlock, end - begin);
      const float* blocks[2];
      for (int o = 0; o < 2; ++o) {
        const bool lies_so = loops[o].rank == 1 && loops[o].inner_stride(0) == 1;
        blocks[o] = lies_so ? operands[o] + begin : buffers[o];
        if (!lies_so) gather_elements(loops[o], begin, begin + n, operands[o], buffers[o]);
      }
      binary_f32(op, blocks[0], 1, blocks[1], 1, dst + begin, n);
    }
  });
}

}  // namespace

void binary_f32(Binary op, const BroadcastPlan<2>& plan, const float* a, const float* b, float* dst, ThreadPool* pool) {
  if (plan.rank > 1 && plan.inner() < kShortRun) return short_runs_f32(op, plan, a, b, dst, pool);
  parallel_for(pool, plan.size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    for_each_run(plan, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
      binary_f32(op, a + at[0], plan.inner_stride(0), b + at[1], plan.inner_stride(1), dst + first, n);
    });
  });
}

}  // namespace treadle::kernels
#endif
