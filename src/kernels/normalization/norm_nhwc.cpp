#include "kernels/normalization/norm_nhwc.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/norm_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

namespace {

// Computes mean and sum of squared differences for kVectors vectors of channels in two passes. The second pass finds the block in cache.
template <int kVectors, class Load>
HWY_INLINE void block_statistics(int64_t pixels, int64_t step, const float* x, Load load, V* mean, V* square) {
  const D d;
  const V share = hn::Set(d, 1.0F / static_cast<float>(pixels));
  for (int k = 0; k < kVectors; ++k) mean[k] = square[k] = hn::Zero(d);
  const float* from = x;
  for (int64_t p = 0; p < pixels; ++p, from += step)
    for (int k = 0; k < kVectors; ++k) mean[k] = hn::Add(mean[k], load(from, k));
  for (int k = 0; k < kVectors; ++k) mean[k] = hn::Mul(mean[k], share);
  from = x;
  for (int64_t p = 0; p < pixels; ++p, from += step) {
    for (int k = 0; k < kVectors; ++k) {
      const V centered = hn::Sub(load(from, k), mean[k]);
      square[k] = hn::MulAdd(centered, centered, square[k]);
    }
  }
}

}  // namespace

void channel_statistics(int64_t pixels, int64_t C, int64_t step, const float* x, float* means, float* squares) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kAtOnce = 4;
  V mean[kAtOnce], square[kAtOnce];
  auto whole = [&](const float* from, int k) { return hn::LoadU(d, from + k * lanes); };
  int64_t c = 0;
  for (; c + kAtOnce * lanes <= C; c += kAtOnce * lanes) {
    block_statistics<kAtOnce>(pixels, step, x + c, whole, mean, square);
    for (int k = 0; k < kAtOnce; ++k) hn::StoreU(mean[k], d, means + c + k * lanes), hn::StoreU(square[k], d, squares + c + k * lanes);
  }
  for (; c + lanes <= C; c += lanes) {
    block_statistics<1>(pixels, step, x + c, whole, mean, square);
    hn::StoreU(mean[0], d, means + c), hn::StoreU(square[0], d, squares + c);
  }
  if (c == C) return;
  const FirstLanes rest(d, C - c);
  block_statistics<1>(
      pixels, step, x + c, [&](const float* from, int) { return load_first(d, rest, from); }, mean, square);
  store_first(mean[0], d, rest, means + c), store_first(square[0], d, rest, squares + c);
}

void normalize_pixels(int64_t pixels, const NhwcNorm& norm, const float* x, const float* means, const float* factors, const float* bias,
                      float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V low = hn::Set(d, norm.low);
  auto result = [&](V v, V mean, V factor, V addend) { return at_least(low, hn::MulAdd(hn::Sub(v, mean), factor, addend)); };
  for (int64_t p = 0; p < pixels; ++p, x += norm.x_pixel, y += norm.y_pixel) {
    int64_t c = 0;
    for (; c + lanes <= norm.C; c += lanes)
      hn::StoreU(result(hn::LoadU(d, x + c), hn::LoadU(d, means + c), hn::LoadU(d, factors + c), hn::LoadU(d, bias + c)), d, y + c);
    if (c == norm.C) continue;
    const FirstLanes rest(d, norm.C - c);
    auto some = [&](const float* from) { return load_first(d, rest, from + c); };
    store_first(result(some(x), some(means), some(factors), some(bias)), d, rest, y + c);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(channel_statistics);
HWY_EXPORT(normalize_pixels);

namespace {

// Returns the number of pixels of a block: so few that float sums are precise, and that both passes find the block in L1 or L2.
int64_t block_pixels(const NhwcNorm& norm) { return std::clamp<int64_t>(16'384 / std::max<int64_t>(1, norm.C), 16, 128); }
int64_t num_blocks(const NhwcNorm& norm) { return (norm.pixels + block_pixels(norm) - 1) / block_pixels(norm); }

}  // namespace

size_t norm_nhwc_scratch_bytes(const NhwcNorm& norm) {
  return static_cast<size_t>(2 * norm.N * norm.C * (num_blocks(norm) + 1)) * sizeof(float);
}

void norm_nhwc(const NhwcNorm& norm, const float* x, const float* scale, const float* bias, float* y, void* scratch, ThreadPool* pool) {
  const int64_t C = norm.C, block = block_pixels(norm), blocks = num_blocks(norm), size = C / norm.groups;
  if (norm.N * norm.pixels * C == 0) return;
  auto* statistics = static_cast<float*>(scratch);  // with the shape [image, block, mean or square, channel]
  float* results = statistics + 2 * norm.N * blocks * C;
  auto pixels_of = [&](int64_t b) { return std::min(block, norm.pixels - b * block); };
  parallel_for(pool, norm.N * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / blocks * norm.pixels + i % blocks * block;
      float* to = statistics + 2 * i * C;
      HWY_DYNAMIC_DISPATCH(channel_statistics)(pixels_of(i % blocks), C, norm.x_pixel, x + first * norm.x_pixel, to, to + C);
    }
  });
  parallel_for(pool, norm.N * norm.groups, std::max<int64_t>(1, 4096 / (size * blocks)), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t n = g / norm.groups, c0 = g % norm.groups * size;
      const float* of_image = statistics + 2 * n * blocks * C;
      const double count = static_cast<double>(norm.pixels * size);
      double mean = 0, square = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        double sum = 0;
        for (int64_t c = c0; c < c0 + size; ++c) sum += static_cast<double>(of_image[2 * b * C + c]);
        mean += sum * static_cast<double>(pixels_of(b));
      }
      mean /= count;
      for (int64_t b = 0; b < blocks; ++b) {
        const float *means = of_image + 2 * b * C, *squares = means + C;
        double own = 0, between = 0;
        for (int64_t c = c0; c < c0 + size; ++c) {
          const double difference = static_cast<double>(means[c]) - mean;
          own += static_cast<double>(squares[c]), between += difference * difference;
        }
        square += own + between * static_cast<double>(pixels_of(b));
      }
      const double inverse = 1 / std::sqrt(square / count + static_cast<double>(norm.epsilon));
      float *means = results + 2 * n * C, *factors = means + C;
      for (int64_t c = c0; c < c0 + size; ++c) {
        means[c] = static_cast<float>(mean);
        factors[c] = static_cast<float>(inverse * static_cast<double>(scale[c]));
      }
    }
  });
  parallel_for(pool, norm.N * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, first = n * norm.pixels + i % blocks * block;
      const float* means = results + 2 * n * C;
      HWY_DYNAMIC_DISPATCH(normalize_pixels)
      (pixels_of(i % blocks), norm, x + first * norm.x_pixel, means, means + C, bias, y + first * norm.y_pixel);
    }
  });
}

}  // namespace treadle::kernels
#endif
