#include "kernels/attention/rotary.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/rotary.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void rotate_row(int64_t size, bool interleaved, const float* x, const float* cos, const float* sin, float* y) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), half = size / 2;
  const int64_t step = interleaved ? 2 : 1, second = interleaved ? 1 : half;
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    V a, b, cos_a, cos_b, sin_a, sin_b;
    if (interleaved) {
      hn::LoadInterleaved2(d, x + 2 * i, a, b);
      hn::LoadInterleaved2(d, cos + 2 * i, cos_a, cos_b);
      hn::LoadInterleaved2(d, sin + 2 * i, sin_a, sin_b);
    } else {
      a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
      cos_a = hn::LoadU(d, cos + i), cos_b = hn::LoadU(d, cos + half + i);
      sin_a = hn::LoadU(d, sin + i), sin_b = hn::LoadU(d, sin + half + i);
    }
    const V first = hn::NegMulAdd(b, sin_a, hn::Mul(a, cos_a)), other = hn::MulAdd(a, sin_b, hn::Mul(b, cos_b));
    if (interleaved) {
      hn::StoreInterleaved2(first, other, d, y + 2 * i);
    } else {
      hn::StoreU(first, d, y + i), hn::StoreU(other, d, y + half + i);
    }
  }
  for (; i < half; ++i) {
    const int64_t p = i * step, q = p + second;
    const float a = x[p], b = x[q];
    y[p] = a * cos[p] - b * sin[p];
    y[q] = b * cos[q] + a * sin[q];
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(rotate_row);

void rotary(const RotaryParams& p, const float* x, const float* cos, const float* sin, float* y, ThreadPool* pool) {
  parallel_for(pool, p.batch * p.heads * p.length, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, p.size)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t b = i / (p.heads * p.length), h = i / p.length % p.heads, row = i % p.length;
                   auto at = [&](const HeadStrides& s) { return b * s.batch + h * s.head + row * s.row; };
                   HWY_DYNAMIC_DISPATCH(rotate_row)(p.size, p.interleaved, x + at(p.x), cos + at(p.cos), sin + at(p.sin), y + at(p.y));
                 }
               });
}

}  // namespace treadle::kernels
#endif
