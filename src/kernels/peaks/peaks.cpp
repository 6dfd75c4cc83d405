#include "kernels/peaks/peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/peaks/peaks.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/gemm/tile_amx.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// Twelve accumulators hide a latency of four or five cycles on two units, and they fit AVX2's registers.
double multiply_adds(int64_t iterations, float* sink) {
  const D d;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  auto a = hn::Set(d, 0.01f), b = hn::Set(d, 0.02f), c = hn::Set(d, 0.03f), e = hn::Set(d, 0.04f);
  auto f = hn::Set(d, 0.05f), g = hn::Set(d, 0.06f), h = hn::Set(d, 0.07f), i = hn::Set(d, 0.08f);
  auto j = hn::Set(d, 0.09f), k = hn::Set(d, 0.10f), l = hn::Set(d, 0.11f), m = hn::Set(d, 0.12f);
  for (int64_t n = 0; n < iterations; ++n) {
    a = hn::MulAdd(a, factor, term);
    b = hn::MulAdd(b, factor, term);
    c = hn::MulAdd(c, factor, term);
    e = hn::MulAdd(e, factor, term);
    f = hn::MulAdd(f, factor, term);
    g = hn::MulAdd(g, factor, term);
    h = hn::MulAdd(h, factor, term);
    i = hn::MulAdd(i, factor, term);
    j = hn::MulAdd(j, factor, term);
    k = hn::MulAdd(k, factor, term);
    l = hn::MulAdd(l, factor, term);
    m = hn::MulAdd(m, factor, term);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i))), hn::Add(hn::Add(j, k), hn::Add(l, m)));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(iterations);
}

void copy(const float* HWY_RESTRICT src, float* HWY_RESTRICT dst, int64_t n) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto a = hn::LoadU(d, src + i), b = hn::LoadU(d, src + i + lanes);
    const auto c = hn::LoadU(d, src + i + 2 * lanes), e = hn::LoadU(d, src + i + 3 * lanes);
    hn::StoreU(a, d, dst + i);
    hn::StoreU(b, d, dst + i + lanes);
    hn::StoreU(c, d, dst + i + 2 * lanes);
    hn::StoreU(e, d, dst + i + 3 * lanes);
  }
  for (; i < n; ++i) dst[i] = src[i];
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(multiply_adds);
HWY_EXPORT(copy);

double multiply_add_loop(int64_t iterations, float* sink) { return HWY_DYNAMIC_DISPATCH(multiply_adds)(iterations, sink); }

double tile_product_loop(int64_t iterations) {
  if (!has_split_tiles()) return 0;
  constexpr int64_t kSteps = 3;  // number of steps whose tiles stay in L1
  alignas(64) uint16_t A[kSteps * 2 * kSplitTiles], B[kSteps * 2 * kSplitTiles];
  alignas(64) float sums[4 * kSplitRows * kSplitRows];
  // The numbers are near 1 and -1 and have all mantissas, as CPUs multiply zeros faster.
  for (int64_t i = 0; i < kSteps * 2 * kSplitTiles; ++i) A[i] = B[i] = static_cast<uint16_t>(0x3F80 ^ i % 128 ^ i % 3 << 15);
  AmxTiles tiles;
  for (int64_t n = 0; n < iterations; ++n)
    tiles.multiply_split({.A = A, .B = B, .steps = kSteps, .tall = true, .wide = true, .sums = sums});
  return 2.0 * kSteps * kSplitTerms * 4 * kSplitRows * kSplitRows * static_cast<double>(iterations);
}

void copy_loop(const float* src, float* dst, int64_t n) { HWY_DYNAMIC_DISPATCH(copy)(src, dst, n); }

}  // namespace treadle::kernels
#endif
