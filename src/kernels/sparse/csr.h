// Products of sparse matrices in CSR format and dense matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

/// Computes dst[m, n] = sum of A[m, k] * B[k, n] over the elements (m, k) of A. Rows run in parallel; each is summed in the order of its
/// elements.
/// @param offsets  [M + 1], begin of each row's elements
/// @param columns  [offsets[M]], each in [0, K)
/// @param B        [K, N], dst [M, N], contiguous
template <typename T>
void csr_times_dense(int64_t M, int64_t N, const int64_t* offsets, const int64_t* columns, const T* values, const T* B, T* dst,
                     ThreadPool* pool) {
  const int64_t per_row = M > 0 ? N * (1 + offsets[M] / M) : 1;
  parallel_for(pool, M, per_row >= 16384 ? 1 : 16384 / (per_row > 0 ? per_row : 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      T* row = dst + m * N;
      for (int64_t n = 0; n < N; ++n) row[n] = T{0};
      for (int64_t e = offsets[m]; e < offsets[m + 1]; ++e) {
        const T value = values[e];
        const T* from = B + columns[e] * N;
        for (int64_t n = 0; n < N; ++n) row[n] += value * from[n];
      }
    }
  });
}

/// The elements of a CSR matrix ordered by column, then by row. These are the rows of the transposed matrix.
struct CsrColumns {
  std::vector<int64_t> columns;  ///< columns that have elements, ascending
  std::vector<int64_t> begins;   ///< [columns + 1], begin of each column's elements
  std::vector<int64_t> elements, rows;

  CsrColumns(int64_t M, const int64_t* offsets, const int64_t* column_of)
      : elements(static_cast<size_t>(offsets[M])), rows(elements.size()) {
    std::vector<int64_t> row_of(elements.size());
    for (int64_t m = 0; m < M; ++m) std::fill(row_of.begin() + offsets[m], row_of.begin() + offsets[m + 1], m);
    std::iota(elements.begin(), elements.end(), int64_t{0});
    std::stable_sort(elements.begin(), elements.end(), [&](int64_t a, int64_t b) { return column_of[a] < column_of[b]; });
    for (size_t i = 0; i < elements.size(); ++i) {
      rows[i] = row_of[static_cast<size_t>(elements[i])];
      const int64_t column = column_of[elements[i]];
      if (columns.empty() || columns.back() != column) columns.push_back(column), begins.push_back(static_cast<int64_t>(i));
    }
    begins.push_back(offsets[M]);
  }
};

/// For each k, an index into `columns`: computes row_at(k)[n] = sum of A[m, columns[k]] * B[m, n] over the column's elements. Terms are
/// summed in the order of A's rows, whatever the number of threads. @param B  [M, N], contiguous
template <typename T, typename RowAt>
void csr_columns_times_dense(const CsrColumns& a, int64_t N, const T* values, const T* B, ThreadPool* pool, RowAt row_at) {
  const auto count = static_cast<int64_t>(a.columns.size());
  const int64_t per_column = count > 0 ? N * (1 + a.begins.back() / count) : 1;
  parallel_for(pool, count, per_column >= 16384 ? 1 : 16384 / (per_column > 0 ? per_column : 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const auto at = static_cast<size_t>(k);
      T* row = row_at(k);
      std::fill_n(row, N, T{0});
      for (int64_t e = a.begins[at]; e < a.begins[at + 1]; ++e) {
        const T value = values[a.elements[static_cast<size_t>(e)]];
        const T* from = B + a.rows[static_cast<size_t>(e)] * N;
        for (int64_t n = 0; n < N; ++n) row[n] += value * from[n];
      }
    }
  });
}

}  // namespace treadle::kernels
