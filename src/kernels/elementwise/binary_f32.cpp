#include "kernels/elementwise/binary_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/binary_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

struct Add {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Add(x, y);
  }
};
struct Sub {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Sub(x, y);
  }
};
struct Mul {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Mul(x, y);
  }
};
struct Div {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::Div(x, y);
  }
};
// Max and Min return their second operand if one is NaN; a NaN in the first must win too.
struct Max {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::IfThenElse(hn::Eq(x, x), hn::Max(x, y), x);
  }
};
struct Min {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x, V y) const {
    return hn::IfThenElse(hn::Eq(x, x), hn::Min(x, y), x);
  }
};

// Strides 0 or 1 go by vectors, whose last elements go one by one: all six operations round the same either way.
template <class Op>
void run(const float* a, int64_t sa, const float* b, int64_t sb, float* dst, int64_t n) {
  const hn::ScalableTag<float> d;
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
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(binary_run);

void binary_f32(Binary op, const BroadcastPlan<2>& plan, const float* a, const float* b, float* dst, ThreadPool* pool) {
  parallel_for(pool, plan.size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    for_each_run(plan, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
      HWY_DYNAMIC_DISPATCH(binary_run)(op, a + at[0], plan.inner_stride(0), b + at[1], plan.inner_stride(1), dst + first, n);
    });
  });
}

}  // namespace treadle::kernels
#endif
