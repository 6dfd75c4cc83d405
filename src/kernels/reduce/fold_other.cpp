// Reductions of rare types, for which the baseline instruction set suffices.
#include "kernels/reduce/fold-inl.h"

namespace treadle::kernels {
#define TREADLE_FOLD(T)                                                                                          \
  template <>                                                                                                    \
  FoldTotal<T> fold_run(Fold fold, const T* x, int64_t n, int64_t stride, FoldTotal<T> total) {                  \
    return HWY_NAMESPACE::fold_run_of(fold, x, n, stride, total);                                                \
  }                                                                                                              \
  template <>                                                                                                    \
  void fold_rows(Fold fold, const T* x, int64_t count, int64_t row_stride, int64_t n, FoldTotal<T>* totals) {    \
    HWY_NAMESPACE::fold_rows_of(fold, x, count, row_stride, n, totals);                                          \
  }                                                                                                              \
  template <>                                                                                                    \
  void fold_columns(Fold fold, const T* x, int64_t rows, int64_t row_stride, int64_t n, FoldTotal<T>* columns) { \
    HWY_NAMESPACE::fold_columns_of(fold, x, rows, row_stride, n, columns);                                       \
  }
TREADLE_FOLD(int16_t)
TREADLE_FOLD(uint16_t)
TREADLE_FOLD(uint32_t)
TREADLE_FOLD(uint64_t)
TREADLE_FOLD(Float16)
TREADLE_FOLD(BFloat16)
#undef TREADLE_FOLD
}  // namespace treadle::kernels
