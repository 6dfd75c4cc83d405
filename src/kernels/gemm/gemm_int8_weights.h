// Products with weights stored in 8 bits: C = f(A B + beta bias + residual), with B(k, n) = scale(n) q(k, n), q from -128 to 127.
//
// Only weights are rounded, to multiples of 1/127 of their column's largest magnitude; columns of dequantized 8-bit numbers stay exact. Up
// to four rows of A are multiplied by the bytes directly, which reads a quarter as much memory as float32 weights. For more rows, blocks of
// a panel are expanded to float32 in L1 and multiplied from there, as fast as float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// A view of a packed matrix, which does not own the memory.
struct PackedInt8Weights {
  int64_t K = 0, N = 0;
  const int8_t* data = nullptr;
  const float* scales = nullptr;  ///< one scale per column, padded like the panels
};

/// Returns the number of bytes of the panels.
int64_t packed_int8_size(int64_t K, int64_t N);
int64_t packed_int8_scales(int64_t N);

/// Returns true if the elements of each column of B are -128 to 127 times one number, as in dequantized 8-bit weights: packing them is then
/// exact. Other weights are usually rejected after a few elements.
/// @param B  as for pack_int8_weights(); may be unaligned if it is not transposed
bool are_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed);

/// Rounds and packs B. A column with a weight that is not finite becomes NaN.
/// @param B  K x N with row stride ldb; or, if `transposed`, N x K with row stride ldb
/// @param data, scales  packed_int8_size(K, N) bytes and packed_int8_scales(N) floats
PackedInt8Weights pack_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, int8_t* data, float* scales);

/// Computes C (M x N, row stride ldc) = f(A B + beta bias + residual). The result does not depend on the number of threads.
/// @pre epilogue.alpha == 1
/// @param A  rows of K contiguous elements, lda apart
void gemm_int8_weights(int64_t M, const float* A, int64_t lda, const PackedInt8Weights& B, float* C, int64_t ldc,
                       const Epilogue<float>& epilogue, ThreadPool* pool);

}  // namespace treadle::kernels
