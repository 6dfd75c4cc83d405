#include "kernels/gemm/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/gemm/tile-inl.h"
#include "kernels/gemm/tile_functions.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

template <int kVectors = kMaxVectors>
void finish_any(const float* sums, const TileJob<float>& to) {
  if constexpr (kVectors > 1) {
    if (to.vectors < kVectors) return finish_any<kVectors - 1>(sums, to);
  }
  constexpr int kRows = std::min(4, max_rows(kVectors));
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  int64_t row = to.row_begin;
  for (; row + kRows <= to.row_end; row += kRows, sums += kRows * width) finish_rows<kVectors, kRows>(sums, to, row);
  for (; row < to.row_end; ++row, sums += width) finish_rows<kVectors, 1>(sums, to, row);
}

}  // namespace

void finish_sums_f32(const float* sums, const TileJob<float>& to) { finish_any(sums, to); }

TREADLE_TILES_OF_TARGET(float, f32)

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

TREADLE_TILES(float, f32)
HWY_EXPORT(finish_sums_f32);
void finish_sums(const float* sums, const TileJob<float>& to) { HWY_DYNAMIC_DISPATCH(finish_sums_f32)(sums, to); }

}  // namespace treadle::kernels
#endif
