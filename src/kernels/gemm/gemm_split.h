// The float32 product by tiles of AMX (tile_split.h): half again as fast as by vectors, and more, where the matrices are large.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile_split.h"

namespace treadle::kernels {

/// Whether the machine has it and it is worth while for one product of the shape: by the shape only.
/// @param b_is_split  B's parts are there already
bool pays_to_split(const GemmShape& shape, bool b_is_split = false);

/// B, and its parts. A view: whoever made them keeps the memory.
struct SplitB {
  const float* whole = nullptr;  ///< null: rows beyond the range of parts meet the sums of B's parts
  const uint16_t* parts = nullptr;
  Magnitude largest = 0;
};

/// @param data  split_b_bytes(shape), aligned to 64 bytes
SplitB split_b(const GemmShape& shape, const float* B, void* data, ThreadPool* pool);
size_t split_b_bytes(const GemmShape& shape);
/// `columns` of B's columns, from the first on, as the sums of their parts: the same but for numbers below 2^-102.
void join_b(const GemmShape& shape, const SplitB& B, int64_t first, int64_t columns, float* to, int64_t ld);

/// C = f(alpha A B + beta bias + residual). Rows whose numbers are beyond what parts represent are computed by vectors, with those of the
/// same 32 rows.
/// @param scratch  gemm_split_scratch_bytes(shape, max_threads), aligned to 64 bytes
void gemm_split(const GemmShape& shape, const float* A, const SplitB& B, float* C, const Epilogue<float>& epilogue, void* scratch,
                int max_threads, ThreadPool* pool);
size_t gemm_split_scratch_bytes(const GemmShape& shape, int max_threads);

}  // namespace treadle::kernels
