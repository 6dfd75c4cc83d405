// The products of gemm_blocked.h with activations rounded to 8 bits: each block of a row of A is scaled so that its largest magnitude is
// 127. Sums within a block are integers, so every machine and any number of threads give the same bits. Needs AVX512-VNNI or AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/gemm_blocked.h"

namespace treadle::kernels {

/// Returns true if this CPU supports these products, and one activation scale per block is precise, because the blocks are short enough.
bool takes_blocked_bytes(const BlockedShape& shape);
size_t gemm_blocked_bytes_scratch(int64_t M, const BlockedShape& shape);
/// Like gemm_blocked(). @pre takes_blocked_bytes(B.shape)
void gemm_blocked_bytes(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool);

/// Rounded rows of A, with one byte for each code of B, ordered for the dot products. For each word of 4-bit codes, the bytes for the even
/// positions precede those for the odd ones; for 8-bit codes, the bytes are in order.
struct BlockedBytesRows {
  const int8_t* codes = nullptr;  ///< with the shape [rows, depth]
  const float* scales = nullptr;  ///< with the shape [rows, blocks]
  const int32_t* sums = nullptr;  ///< sums of the codes of a block, [rows, blocks]
  int64_t depth = 0;
};
/// Computes rows [0, rows) of C for one panel of 64 columns. @pre the CPU has AVX512-VNNI
void blocked_bytes_tile_avx512vnni(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);
/// Like blocked_bytes_tile_avx512vnni(), for AVX2. @pre the CPU has AVX2
void blocked_bytes_tile_avx2(const BlockedBytesRows& A, int64_t rows, const PackedBlocked& B, int64_t panel, float* C);

/// Calls one of `tiles` for every group of rows, where tiles[n] computes n + 1 rows. The sizes of groups differ by one row at most: with
/// six tiles, 7 rows are 4 + 3.
template <typename Job, size_t kMost>
void compute_in_tiles(void (*const (&tiles)[kMost])(const Job&, int64_t row), const Job& job, int64_t rows) {
  int64_t groups = (rows + kMost - 1) / kMost;
  for (int64_t row = 0; row < rows; --groups) {
    const int64_t count = (rows - row + groups - 1) / groups;
    tiles[count - 1](job, row);
    row += count;
  }
}

}  // namespace treadle::kernels
