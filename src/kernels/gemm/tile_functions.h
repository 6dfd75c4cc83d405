// Defines the functions of tile.h for an element type T, whose name in functions is NAME.
#pragma once

/// Inside the namespace of a target.
#define TREADLE_TILES_OF_TARGET(T, NAME)                                                                                                 \
  void tile_rows_##NAME(const TileJob<T>& job) { rows_any(job); }                                                                        \
  PanelShape panel_shape_##NAME() { return panel_shape_here<T>(); }                                                                      \
  void dot_rows_##NAME(const T* A, int64_t a_row, const T* B, int64_t ldb, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end, \
                       int64_t K) {                                                                                                      \
    dot_rows(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);                                                                            \
  }                                                                                                                                      \
  void row_product_##NAME(const T* A, int64_t a_col, const T* B, int64_t ldb, T* C, int64_t N, int64_t K) {                              \
    row_product(A, a_col, B, ldb, C, N, K);                                                                                              \
  }

/// Once, in the namespace kernels: functions that call those of the machine's target.
#define TREADLE_TILES(T, NAME)                                                                                                         \
  HWY_EXPORT(tile_rows_##NAME);                                                                                                        \
  HWY_EXPORT(panel_shape_##NAME);                                                                                                      \
  HWY_EXPORT(dot_rows_##NAME);                                                                                                         \
  HWY_EXPORT(row_product_##NAME);                                                                                                      \
  template <>                                                                                                                          \
  PanelShape panel_shape<T>() {                                                                                                        \
    return HWY_DYNAMIC_DISPATCH(panel_shape_##NAME)();                                                                                 \
  }                                                                                                                                    \
  template <>                                                                                                                          \
  void gemm_tile_rows(const TileJob<T>& job) {                                                                                         \
    HWY_DYNAMIC_DISPATCH(tile_rows_##NAME)(job);                                                                                       \
  }                                                                                                                                    \
  template <>                                                                                                                          \
  void gemm_dot_rows(const T* A, int64_t a_row, const T* B, int64_t ldb, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end, \
                     int64_t K) {                                                                                                      \
    HWY_DYNAMIC_DISPATCH(dot_rows_##NAME)(A, a_row, B, ldb, C, ldc, M, n_begin, n_end, K);                                             \
  }                                                                                                                                    \
  template <>                                                                                                                          \
  void gemm_row_product(const T* A, int64_t a_col, const T* B, int64_t ldb, T* C, int64_t N, int64_t K) {                              \
    HWY_DYNAMIC_DISPATCH(row_product_##NAME)(A, a_col, B, ldb, C, N, K);                                                               \
  }
