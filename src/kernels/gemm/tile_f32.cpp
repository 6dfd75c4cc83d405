#include "kernels/gemm/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/gemm/tile-inl.h"

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

void tile_rows_f32(const TileJob<float>& job) { rows_any(job); }
PanelShape panel_shape_f32() { return panel_shape_here<float>(); }
void dot_rows_f32(const float* A, int64_t a_row, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t M, int64_t n_begin,
                  int64_t n_end, int64_t K) {
  dot_rows(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);
}
void row_product_f32(const float* A, int64_t a_col, const float* B, int64_t ldb, float* C, int64_t N, int64_t K) {
  row_product(A, a_col, B, ldb, C, N, K);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(tile_rows_f32);
HWY_EXPORT(panel_shape_f32);
HWY_EXPORT(finish_sums_f32);
HWY_EXPORT(dot_rows_f32);
HWY_EXPORT(row_product_f32);

template <>
PanelShape panel_shape<float>() {
  return HWY_DYNAMIC_DISPATCH(panel_shape_f32)();
}
template <>
void gemm_tile_rows(const TileJob<float>& job) {
  HWY_DYNAMIC_DISPATCH(tile_rows_f32)(job);
}
void finish_sums(const float* sums, const TileJob<float>& to) { HWY_DYNAMIC_DISPATCH(finish_sums_f32)(sums, to); }
template <>
void gemm_dot_rows(const float* A, int64_t a_row, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t M, int64_t n_begin,
                   int64_t n_end, int64_t K) {
  HWY_DYNAMIC_DISPATCH(dot_rows_f32)(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);
}
template <>
void gemm_row_product(const float* A, int64_t a_col, const float* B, int64_t ldb, float* C, int64_t N, int64_t K) {
  HWY_DYNAMIC_DISPATCH(row_product_f32)(A, a_col, B, ldb, C, N, K);
}

}  // namespace treadle::kernels
#endif
