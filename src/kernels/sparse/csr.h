// Products of matrices whose rows are stored sparsely (CSR).
#pragma once

#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

/// dst[m, n] = sum over the elements (m, k) of A of A[m, k] * B[k, n], rows on as many threads as there are. The order of a row's sum is
/// that of its elements.
/// @param offsets  [M + 1] where each row's elements begin; @param columns  [offsets[M]], each in [0, K)
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

}  // namespace treadle::kernels
