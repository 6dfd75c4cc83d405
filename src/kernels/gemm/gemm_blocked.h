// Products of float activations with weights of 4 or 8 bits that share a scale, and perhaps a zero point, block by block along K:
// C[m, n] = sum over blocks b of scale[b, n] * sum over k in b of A[m, k] * (code[k, n] - zero[b, n]).
// The codes become floats in registers, on their way from memory to the sum: a product of one row reads an eighth or a quarter of the bytes
// that float weights have, and that is its time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

struct BlockedShape {
  int64_t K = 0, N = 0;
  int64_t block_size = 0;  ///< a multiple of 8; the last block may be shorter
  int bits = 4;            ///< 4 or 8
  bool has_zeros = false;

  int64_t blocks() const { return (K + block_size - 1) / block_size; }
  int64_t padded_columns() const { return (N + 63) / 64 * 64; }
  int64_t codes_per_word() const { return 32 / bits; }
};

/// Panels of 64 columns, each a row of words after the other; a word holds the codes of one column for 8 (4 bits) or 4 (8 bits) places of
/// K. Scales and zeros: panels of [blocks, 64].
struct PackedBlocked {
  BlockedShape shape;
  const uint32_t* codes = nullptr;
  const float* scales = nullptr;
  const float* zeros = nullptr;  ///< in codes from the middle; null if there are none
};
size_t blocked_code_words(const BlockedShape& shape);
size_t blocked_scale_count(const BlockedShape& shape);

/// Sets codes from the middle: -8 .. 7 or -128 .. 127. `words` must be zero before the first call.
void pack_blocked_code(const BlockedShape& shape, int64_t k, int64_t n, int32_t code, uint32_t* words);
int64_t blocked_scale_place(const BlockedShape& shape, int64_t block, int64_t n);

size_t gemm_blocked_scratch(int64_t M, const BlockedShape& shape);
/// C [M, N] = A [M, K] times the weights, all rows contiguous. The same bits for any number of threads.
void gemm_blocked(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
