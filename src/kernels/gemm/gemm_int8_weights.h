// Products by weights that are kept in 8 bits: C = f(A B + beta bias + residual), with B(k, n) = scale(n) q(k, n), q from -128 to 127.
//
// Only the weights are rounded, to the nearest multiple of a 127th of their column's largest; those that are multiples of 8-bit numbers
// stay as they are. Up to four rows of A are multiplied by the bytes as they are read, a quarter of float32's; for more rows, a block of a
// panel at a time becomes float32, in L1, and meets all rows there, which takes float32's time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// A packed matrix. A view: whoever packed it keeps the memory.
struct PackedInt8Weights {
  int64_t K = 0, N = 0;
  const int8_t* data = nullptr;
  const float* scales = nullptr;  ///< of every column, padded as the panels are
};

/// Bytes of the panels, and number of scales.
int64_t packed_int8_size(int64_t K, int64_t N);
int64_t packed_int8_scales(int64_t N);

/// Whether each column of B consists of multiples of one number, from -128 to 127 times, as those do that were 8-bit weights before they
/// were scaled: packing does not round them then. Told after a few elements of other weights.
/// @param B  as for pack_int8_weights; if it is not transposed, at any address
bool are_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed);

/// Rounds and packs B. A column with a weight that is not finite becomes NaN.
/// @param B  K x N with row stride ldb; or, if `transposed`, N x K with row stride ldb
/// @param data, scales  packed_int8_size(K, N) bytes and packed_int8_scales(N) floats
PackedInt8Weights pack_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, int8_t* data, float* scales);

/// C (M x N, row stride ldc) = f(A B + beta bias + residual); same bits for any number of threads.
/// @pre epilogue.alpha == 1
/// @param A  rows of K contiguous elements, lda apart
void gemm_int8_weights(int64_t M, const float* A, int64_t lda, const PackedInt8Weights& B, float* C, int64_t ldc,
                       const Epilogue<float>& epilogue, ThreadPool* pool);

}  // namespace treadle::kernels
