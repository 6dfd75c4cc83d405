#include "kernels/conv/pool_nhwc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/pool_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/bounds-inl.h"
#include "kernels/conv/pool.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct Place {
  Taps down, along;
  float scale;
};

// Computes one output pixel, kVectors vectors of channels at a time to hide latency. The last vector has `count` channels.
template <NhwcPool kKind, int kVectors>
HWY_INLINE void pixel(const Window& w, int64_t step, const Place& p, const float* x, int64_t c, int64_t count, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FirstLanes first(d, count);
  const bool cut = count < lanes;
  const V start = kKind == NhwcPool::max ? hn::Set(d, -std::numeric_limits<float>::infinity()) : hn::Zero(d);
  V result[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) result[v] = start;
  for (int64_t i = p.down.first; i < p.down.last; ++i) {
    const float* row = x + ((p.down.start + i * w.dilation[1]) * w.in[2] + p.along.start) * step + c;
    for (int64_t j = p.along.first; j < p.along.last; ++j) {
      const float* from = row + j * w.dilation[2] * step;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V element = v == kVectors - 1 && cut ? load_first(d, first, from + v * lanes) : hn::LoadU(d, from + v * lanes);
        if constexpr (kKind == NhwcPool::max) {
          // at_least() returns its second operand if one is NaN, so a NaN in `result` stays; a NaN in `element` is selected explicitly.
          result[v] = hn::IfThenElse(hn::IsNaN(element), element, at_least(element, result[v]));
        } else {
          result[v] = hn::Add(result[v], element);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kKind == NhwcPool::average) result[v] = hn::Div(result[v], hn::Set(d, p.scale));
    if (v == kVectors - 1 && cut) {
      store_first(result[v], d, first, y + c + v * lanes);
    } else {
      hn::StoreU(result[v], d, y + c + v * lanes);
    }
  }
}

template <NhwcPool kKind>
void row_of(const Window& w, int64_t C, bool include_pad, PixelSteps steps, const float* x, int64_t oh, float* y) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t high = pool_elements(w, 1, oh, include_pad), reach = (w.kernel[2] - 1) * w.dilation[2];
  const Taps down = taps_inside(w, 1, oh);
  for (int64_t ow = 0; ow < w.out[2]; ++ow, y += steps.y) {
    // Most windows are inside the image; they skip the divisions of taps_inside().
    const int64_t start = ow * w.stride[2] - w.pad_begin[2];
    const bool inside = start >= 0 && start + reach < w.in[2];
    const Place p{down, inside ? Taps{0, w.kernel[2], start} : taps_inside(w, 2, ow),
                  static_cast<float>(high * (inside ? w.kernel[2] : pool_elements(w, 2, ow, include_pad)))};
    int64_t c = 0;
    for (; c + 4 * lanes <= C; c += 4 * lanes) pixel<kKind, 4>(w, steps.x, p, x, c, lanes, y);
    for (; c + lanes <= C; c += lanes) pixel<kKind, 1>(w, steps.x, p, x, c, lanes, y);
    if (c < C) pixel<kKind, 1>(w, steps.x, p, x, c, C - c, y);
  }
}

}  // namespace

void pool_row(NhwcPool kind, const Window& w, int64_t C, bool include_pad, PixelSteps steps, const float* x, int64_t oh, float* y) {
  const auto row = kind == NhwcPool::max ? row_of<NhwcPool::max> : row_of<NhwcPool::average>;
  row(w, C, include_pad, steps, x, oh, y);
}

// Sets y[c] to the sum of x[pixel, c] / divisor. Reads in memory order: all channels of four pixels, then of the next four.
void sum_pixels(int64_t pixels, int64_t step, int64_t C, float divisor, const float* x, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FirstLanes rest(d, C % lanes);
  std::fill_n(y, C, 0.0f);
  auto add = [&](auto sum_of) {
    int64_t c = 0;
    for (; c + lanes <= C; c += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, y + c), sum_of([&](int64_t i) { return hn::LoadU(d, x + i * step + c); })), d, y + c);
    }
    if (c == C) return;
    const V sum = hn::Add(load_first(d, rest, y + c), sum_of([&](int64_t i) { return load_first(d, rest, x + i * step + c); }));
    store_first(sum, d, rest, y + c);
  };
  for (; pixels >= 4; pixels -= 4, x += 4 * step) add([](auto at) { return hn::Add(hn::Add(at(0), at(1)), hn::Add(at(2), at(3))); });
  for (; pixels > 0; --pixels, x += step) add([](auto at) { return at(0); });
  if (divisor == 1) return;
  for (int64_t c = 0; c < C; ++c) y[c] /= divisor;
}

void affine_rows(int64_t rows, int64_t C, PixelSteps steps, const float* x, const float* scale, const float* shift, float low, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V bottom = hn::Set(d, low);
  for (int64_t r = 0; r < rows; ++r, x += steps.x, y += steps.y) {
    int64_t c = 0;
    for (; c + lanes <= C; c += lanes)
      hn::StoreU(at_least(bottom, hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, scale + c), hn::LoadU(d, shift + c))), d, y + c);
    if (c == C) continue;
    const FirstLanes rest(d, C - c);
    const V last = hn::MulAdd(load_first(d, rest, x + c), load_first(d, rest, scale + c), load_first(d, rest, shift + c));
    store_first(at_least(bottom, last), d, rest, y + c);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

namespace {

HWY_EXPORT(pool_row);
HWY_EXPORT(affine_rows);
HWY_EXPORT(sum_pixels);

int64_t num_lines(int64_t pixels, int64_t line) { return (pixels + line - 1) / line; }

}  // namespace

void pool_nhwc(NhwcPool kind, const Window& w, int64_t N, int64_t C, bool include_pad, PixelSteps steps, const float* x, float* y,
               ThreadPool* pool) {
  const int64_t row = w.out[2] * C;
  parallel_for(pool, N * w.out[1], std::max<int64_t>(1, 32'768 / std::max<int64_t>(1, row * w.kernel_size())),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) HWY_DYNAMIC_DISPATCH(pool_row)
                 (kind, w, C, include_pad, steps, x + r / w.out[1] * w.in_size() * steps.x, r % w.out[1], y + r * w.out[2] * steps.y);
               });
}

size_t mean_nhwc_scratch_bytes(int64_t N, int64_t pixels, int64_t line, int64_t C) {
  return static_cast<size_t>(N * num_lines(pixels, line) * C) * sizeof(float);
}

// Divides lines of pixels among threads as the kernels do that write the image, so that a core finds its lines in its own cache.
void mean_nhwc(int64_t N, int64_t pixels, int64_t line, int64_t C, int64_t step, const float* x, float* y, void* scratch,
               ThreadPool* pool) {
  auto* sums = static_cast<float*>(scratch);
  const int64_t lines = num_lines(pixels, line);
  parallel_for(pool, N * lines, std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, line * C)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % lines * line;
      HWY_DYNAMIC_DISPATCH(sum_pixels)
      (std::min(line, pixels - first), step, C, 1, x + (i / lines * pixels + first) * step, sums + i * C);
    }
  });
  for (int64_t n = 0; n < N; ++n)
    HWY_DYNAMIC_DISPATCH(sum_pixels)(lines, C, C, static_cast<float>(pixels), sums + n * lines * C, y + n * C);
}

void affine_nhwc(int64_t rows, int64_t C, PixelSteps steps, const float* x, const float* scale, const float* shift, float low, float* y,
                 ThreadPool* pool) {
  parallel_for(pool, rows, std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, C)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(affine_rows)(end - begin, C, steps, x + begin * steps.x, scale, shift, low, y + begin * steps.y);
  });
}

}  // namespace treadle::kernels
#endif
