// The products of gemm_blocked.h with activations rounded to 8 bits: each block of a row of A is scaled so that its largest magnitude is
// 127. Sums within a block are integers, so every machine and any number of threads give the same bits. Needs AVX512-VNNI or AVX2.
#pragma once

#include "kernels/gemm/gemm_blocked.h"

namespace treadle::kernels {

/// Returns true if this CPU supports it and blocks are short enough that a scale for the activations of each keeps them precise.
bool takes_blocked_bytes(const BlockedShape& shape);
size_t gemm_blocked_bytes_scratch(int64_t M, const BlockedShape& shape);
/// Like gemm_blocked(). @pre takes_blocked_bytes(B.shape)
void gemm_blocked_bytes(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool);

/// Rounded rows of A, ordered for the dot products. For each word of B's codes: the bytes of its even places and then of its odd places (4
/// bits), or of its places in order (8 bits).
struct BlockedBytesRows {
  const int8_t* codes = nullptr;  ///< [rows, depth]
  const float* scales = nullptr;  ///< [rows, blocks]
  const int32_t* sums = nullptr;  ///< sums of the codes of a block, [rows, blocks]
  int64_t depth = 0;
};
/// Computes `rows` rows of one panel of 64 columns. @pre the CPU has AVX512-VNNI
void blocked_bytes_tile_avx512vnni(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);
/// Like blocked_bytes_tile_avx512vnni(), for AVX2. @pre the CPU has it
void blocked_bytes_tile_avx2(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);

}  // namespace treadle::kernels
