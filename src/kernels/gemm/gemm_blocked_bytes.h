// The products of gemm_blocked.h with activations of 8 bits: each row of A is rounded, block by block, to 127 steps of its largest
// magnitude there, and a block's sum is one of integers. Exact but for that rounding, so that every machine and any number of threads give
// the same bits. With AVX512-VNNI or AVX2.
#pragma once

#include "kernels/gemm/gemm_blocked.h"

namespace treadle::kernels {

/// Whether this process can, and blocks are short enough to be worth a scale of activations each.
bool takes_blocked_bytes(const BlockedShape& shape);
size_t gemm_blocked_bytes_scratch(int64_t M, const BlockedShape& shape);
/// As gemm_blocked(). @pre takes_blocked_bytes(B.shape)
void gemm_blocked_bytes(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool);

/// Rows of A in steps: for each word of the codes, the bytes of the places that its even nibbles stand for, then of the odd ones (4 bits),
/// or of its places in order (8 bits).
struct BlockedBytesRows {
  const int8_t* codes = nullptr;  ///< [rows, depth]
  const float* scales = nullptr;  ///< [rows, blocks]
  const int32_t* sums = nullptr;  ///< of the codes, [rows, blocks]
  int64_t depth = 0;
};
/// Some rows times one panel of 64 columns. @pre the CPU has AVX512-VNNI
void blocked_bytes_tile_avx512vnni(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);
/// @pre the CPU has AVX2
void blocked_bytes_tile_avx2(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);

}  // namespace treadle::kernels
