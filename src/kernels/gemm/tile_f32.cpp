#include "kernels/gemm/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_f32.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/gemm/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

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
