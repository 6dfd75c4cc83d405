// float32 products by AMX tiles (tile_split.h): at least 1.5 times as fast as vectors if the matrices are large.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile_split.h"

namespace treadle::kernels {

/// Returns true if the CPU supports gemm_split() and it is faster than vectors for a product of this shape. Depends only on the shape.
/// @param b_is_split  B has been split already
bool pays_to_split(const GemmShape& shape, bool b_is_split = false);

/// The matrix B, each number split into three bfloat16 parts. This is a view: the owner keeps the memory.
struct SplitB {
  const float* whole = nullptr;  ///< the original B; null: rows that cannot be split use the sums of B's parts
  const uint16_t* parts = nullptr;
  Magnitude largest = 0;
};

/// Splits each number of B into bfloat16 parts. @param data  split_b_bytes(shape), aligned to 64 bytes
SplitB split_b(const GemmShape& shape, const float* B, void* data, ThreadPool* pool);
size_t split_b_bytes(const GemmShape& shape);
/// Restores `columns` columns of B, beginning with `first`, by adding their parts: exact except for numbers below 2^-102.
void join_b(const GemmShape& shape, const SplitB& B, int64_t first, int64_t columns, float* to, int64_t ld);

/// Computes C = f(alpha A B + beta bias + residual). If a number of A cannot be split into parts, its block of 32 rows is computed by
/// vector instructions. @param scratch  gemm_split_scratch_bytes(shape, max_threads), aligned to 64 bytes
void gemm_split(const GemmShape& shape, const float* A, const SplitB& B, float* C, const Epilogue<float>& epilogue, void* scratch,
                int max_threads, ThreadPool* pool);
size_t gemm_split_scratch_bytes(const GemmShape& shape, int max_threads);

}  // namespace treadle::kernels
