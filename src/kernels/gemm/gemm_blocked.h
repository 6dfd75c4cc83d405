// Products of float activations by block-quantized weights: codes of 4 or 8 bits share a scale, and optionally a zero point, per block
// of K:
//   C[m, n] = sum over blocks b of scale[b, n] * sum over k in b of A[m, k] * (code[k, n] - zero[b, n]).
// Codes are decoded in registers. A product of one row is bound by memory bandwidth and reads an eighth or a quarter of the bytes of float
// weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

struct BlockedShape {
  int64_t K = 0, N = 0;
  int64_t block_size = 0;  ///< must be a multiple of 8; the last block may be shorter
  int bits = 4;            ///< bits of a code: 4 or 8
  bool has_zeros = false;

  int64_t blocks() const { return (K + block_size - 1) / block_size; }
  int64_t padded_columns() const { return (N + 63) / 64 * 64; }
  int64_t codes_per_word() const { return 32 / bits; }
};

/// Block-quantized weights in panels of 64 columns. A panel stores rows of 32-bit words; a word has consecutive codes of one column along
/// K: 8 codes of 4 bits, or 4 codes of 8 bits. Scales and zero points are stored in panels of shape [blocks, 64].
struct PackedBlocked {
  BlockedShape shape;
  const uint32_t* codes = nullptr;
  const float* scales = nullptr;
  const float* zeros = nullptr;  ///< zero points minus the middle of the code range; null: there are none
};
size_t blocked_code_words(const BlockedShape& shape);
size_t blocked_scale_count(const BlockedShape& shape);

/// Stores one code, given relative to the middle of the range: -8..7 or -128..127. `words` must be zero before the first call.
void pack_blocked_code(const BlockedShape& shape, int64_t k, int64_t n, int32_t code, uint32_t* words);
int64_t blocked_scale_place(const BlockedShape& shape, int64_t block, int64_t n);

size_t gemm_blocked_scratch(int64_t M, const BlockedShape& shape);
/// Computes C [M, N] = A [M, K] times the weights, with contiguous rows. The result does not depend on the number of threads.
void gemm_blocked(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
