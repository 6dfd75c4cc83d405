#include "kernels/reduce/fold.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/fold.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/reduce/fold-inl.h"

#define TREADLE_FOLD_TYPES(X) X(double) X(int32_t) X(int64_t) X(int8_t) X(uint8_t)

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
#define TREADLE_FOLD(T)                                                                                              \
  FoldTotal<T> fold_run_##T(Fold fold, const T* x, int64_t n, int64_t stride, FoldTotal<T> total) {                  \
    return fold_run_of(fold, x, n, stride, total);                                                                   \
  }                                                                                                                  \
  void fold_rows_##T(Fold fold, const T* x, int64_t count, int64_t row_stride, int64_t n, FoldTotal<T>* totals) {    \
    fold_rows_of(fold, x, count, row_stride, n, totals);                                                             \
  }                                                                                                                  \
  void fold_columns_##T(Fold fold, const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns) { \
    fold_columns_of(fold, x, rows, row_stride, n, columns);                                                          \
  }
TREADLE_FOLD_TYPES(TREADLE_FOLD)
#undef TREADLE_FOLD
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {
#define TREADLE_FOLD(T)                                                                                          \
  HWY_EXPORT(fold_run_##T);                                                                                      \
  HWY_EXPORT(fold_rows_##T);                                                                                     \
  HWY_EXPORT(fold_columns_##T);                                                                                  \
  template <>                                                                                                    \
  FoldTotal<T> fold_run(Fold fold, const T* x, int64_t n, int64_t stride, FoldTotal<T> total) {                  \
    return HWY_DYNAMIC_DISPATCH(fold_run_##T)(fold, x, n, stride, total);                                        \
  }                                                                                                              \
  template <>                                                                                                    \
  void fold_rows(Fold fold, const T* x, int64_t count, int64_t row_stride, int64_t n, FoldTotal<T>* totals) {    \
    HWY_DYNAMIC_DISPATCH(fold_rows_##T)(fold, x, count, row_stride, n, totals);                                  \
  }                                                                                                              \
  template <>                                                                                                    \
  void fold_columns(Fold fold, const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns) { \
    HWY_DYNAMIC_DISPATCH(fold_columns_##T)(fold, x, rows, row_stride, n, columns);                               \
  }
TREADLE_FOLD_TYPES(TREADLE_FOLD)
#undef TREADLE_FOLD
}  // namespace treadle::kernels
#endif
