#include "kernels/conv/scaled_pointwise.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/conv/nhwc.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/scaled_pointwise.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Multiplies each row of `width` floats by its own scale. `width` is a multiple of the vector length of packed weights.
void scale_rows(const float* from, const float* scale, int64_t rows, int64_t width, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < rows; ++k, from += width, to += width) {
    const auto s = hn::Set(d, scale[k]);
    for (int64_t i = 0; i < width; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, from + i), s), d, to + i);
  }
}

// Multiplies rows of `channels` floats, `step` apart, by one scale per channel. The scales are the same for all rows.
void scale_channels(const float* from, int64_t step, const float* scale, int64_t rows, int64_t channels, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r, from += step, to += channels) {
    int64_t i = 0;
    for (; i + lanes <= channels; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, from + i), hn::LoadU(d, scale + i)), d, to + i);
    for (; i < channels; ++i) to[i] = from[i] * scale[i];
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {
namespace {

HWY_EXPORT(scale_rows);
HWY_EXPORT(scale_channels);

constexpr int64_t kGrainFloats = 16 * 1024;

bool scales_weights(const ConvParams& p) { return packed_b_size<float>(p.C, p.M) <= p.window.out_size() * p.C && direct_fold(p) == 1; }

}  // namespace

size_t scaled_pointwise_scratch_bytes(const ConvParams& p) {
  if (p.N <= 0 || p.M <= 0) return 0;
  return aligned_bytes<float>(scales_weights(p) ? packed_b_size<float>(p.C, p.M) : p.window.out_size() * p.C);
}

void scaled_pointwise(const ConvParams& p, const float* x, const float* scale, const float* packed, float* y, const ConvEpilogue& epilogue,
                      void* scratch, ThreadPool* pool) {
  auto* scaled = static_cast<float*>(scratch);
  const int64_t pixels = p.window.out_size();
  ConvParams one = p;
  one.N = 1;
  for (int64_t image = 0; image < p.N; ++image, x += pixels * p.x_step(), y += pixels * p.y_step(), scale += p.C) {
    ConvEpilogue e = epilogue;
    if (e.residual != nullptr) e.residual += image * pixels * p.M;
    PhaseScope phase(KernelPhase::pack);
    if (scales_weights(p)) {
      const Panels panels(p.M, panel_shape<float>());
      parallel_for(pool, panels.count, std::max<int64_t>(1, kGrainFloats / std::max<int64_t>(1, p.C * 64)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t panel = begin; panel < end; ++panel) {
                       const int64_t at = p.C * panels.first_column(panel);
                       HWY_DYNAMIC_DISPATCH(scale_rows)(packed + at, scale, p.C, panels.width_vectors(panel) * panels.lanes, scaled + at);
                     }
                   });
      phase.next(KernelPhase::none);
      nhwc_conv(one, NhwcMethod::direct, x, nullptr, scaled, y, e, nullptr, 1, pool);
    } else {
      parallel_for(pool, pixels, std::max<int64_t>(1, kGrainFloats / std::max<int64_t>(1, p.C)), [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(scale_channels)(x + begin * p.x_step(), p.x_step(), scale, end - begin, p.C, scaled + begin * p.C);
      });
      phase.next(KernelPhase::none);
      one.x_pixel = 0;
      nhwc_conv(one, NhwcMethod::direct, scaled, nullptr, packed, y, e, nullptr, 1, pool);
    }
  }
}

}  // namespace treadle::kernels
#endif
