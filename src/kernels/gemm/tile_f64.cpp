#include "kernels/gemm/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_f64.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/gemm/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

void tile_rows_f64(const TileJob<double>& job) { rows_any(job); }
PanelShape panel_shape_f64() { return panel_shape_here<double>(); }
void dot_rows_f64(const double* A, int64_t a_row, const double* B, int64_t ldb, double* C, int64_t ldc, int64_t M, int64_t n_begin,
                  int64_t n_end, int64_t K) {
  dot_rows(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);
}
void row_product_f64(const double* A, int64_t a_col, const double* B, int64_t ldb, double* C, int64_t N, int64_t K) {
  row_product(A, a_col, B, ldb, C, N, K);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(tile_rows_f64);
HWY_EXPORT(panel_shape_f64);
HWY_EXPORT(dot_rows_f64);
HWY_EXPORT(row_product_f64);

template <>
PanelShape panel_shape<double>() {
  return HWY_DYNAMIC_DISPATCH(panel_shape_f64)();
}
template <>
void gemm_tile_rows(const TileJob<double>& job) {
  HWY_DYNAMIC_DISPATCH(tile_rows_f64)(job);
}
template <>
void gemm_dot_rows(const double* A, int64_t a_row, const double* B, int64_t ldb, double* C, int64_t ldc, int64_t M, int64_t n_begin,
                   int64_t n_end, int64_t K) {
  HWY_DYNAMIC_DISPATCH(dot_rows_f64)(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);
}
template <>
void gemm_row_product(const double* A, int64_t a_col, const double* B, int64_t ldb, double* C, int64_t N, int64_t K) {
  HWY_DYNAMIC_DISPATCH(row_product_f64)(A, a_col, B, ldb, C, N, K);
}

}  // namespace treadle::kernels
#endif
