#include "kernels/conv/pool_gradient_nhwc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/pool_gradient_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// For one window and one vector of channels: adds dy to the gradient of the first maximum in the window, or of the first NaN.
template <bool kCut, class Rest>
HWY_INLINE void add_to_maximum(const Window& w, int64_t C, const Taps& down, const Taps& along, const float* x, const float* dy,
                               const Rest& rest, float* dx) {
  const D d;
  const hn::RebindToSigned<D> di;
  auto load = [&](const float* from) {
    if constexpr (kCut) return load_first(d, rest, from);
    return hn::LoadU(d, from);
  };
  const int64_t rows = down.last - down.first, columns = along.last - along.first;
  if (rows <= 0 || columns <= 0) return;
  const int64_t row = w.dilation[1] * w.in[2] * C, column = w.dilation[2] * C;
  const int64_t start = ((down.start + down.first * w.dilation[1]) * w.in[2] + along.start + along.first * w.dilation[2]) * C;
  V best = load(x + start);
  auto place = hn::Zero(di);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const V value = load(x + start + i * row + j * column);
      const auto greater = hn::Or(hn::Gt(value, best), hn::AndNot(hn::IsNaN(best), hn::IsNaN(value)));
      best = hn::IfThenElse(greater, value, best);
      place = hn::IfThenElse(hn::RebindMask(di, greater), hn::Set(di, static_cast<int32_t>(i * columns + j)), place);
    }
  }
  const V gradient = load(dy);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto here = hn::RebindMask(d, hn::Eq(place, hn::Set(di, static_cast<int32_t>(i * columns + j))));
      if (hn::AllFalse(d, here)) continue;
      float* to = dx + start + i * row + j * column;
      const V sum = hn::Add(load(to), hn::IfThenElseZero(here, gradient));
      if constexpr (kCut) {
        store_first(sum, d, rest, to);
      } else {
        hn::StoreU(sum, d, to);
      }
    }
  }
}

}  // namespace

// Computes the gradient for channels [begin, end) of one image.
void max_pool_gradient_of(const Window& w, int64_t C, const float* dy, const float* x, int64_t begin, int64_t end, float* dx) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t oh = 0; oh < w.out[1]; ++oh) {
    const Taps down = taps_inside(w, 1, oh);
    for (int64_t ow = 0; ow < w.out[2]; ++ow) {
      const Taps along = taps_inside(w, 2, ow);
      const float* gradient = dy + (oh * w.out[2] + ow) * C;
      int64_t c = begin;
      for (; c + lanes <= end; c += lanes) add_to_maximum<false>(w, C, down, along, x + c, gradient + c, FirstLanes(D(), lanes), dx + c);
      if (c < end) add_to_maximum<true>(w, C, down, along, x + c, gradient + c, FirstLanes(D(), end - c), dx + c);
    }
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(max_pool_gradient_of);

void max_pool_gradient_nhwc(const Window& w, int64_t N, int64_t C, const float* dy, const float* x, float* dx, ThreadPool* pool) {
  constexpr int64_t kChannels = 64;  // number of channels whose rows of x and dx stay in cache
  const int64_t blocks = (C + kChannels - 1) / kChannels, plane = w.in_size() * C;
  std::fill_n(dx, N * plane, 0.0F);
  parallel_for(pool, N * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t n = item / blocks, c = item % blocks * kChannels;
      HWY_DYNAMIC_DISPATCH(max_pool_gradient_of)
      (w, C, dy + n * w.out_size() * C, x + n * plane, c, std::min(C, c + kChannels), dx + n * plane);
    }
  });
}

}  // namespace treadle::kernels
#endif
