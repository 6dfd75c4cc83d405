// Quantizes weights in blocks. These functions return the same codes, bit for bit, as the compiled functions quantize_matmul_* that ONNX
// Runtime's Python quantizers call, so that its quantization package works without its library.
#pragma once

#include <cstdint>

#include "treadle/tensor.h"

namespace treadle::quantization {

/// Describes how a matrix [K, N] is divided into blocks along K.
struct MatmulBlocks {
  int64_t N = 0, K = 0, block_size = 0;
  int bits = 4;
  bool symmetric = false;  ///< true: the zero point is the middle code, and is not stored

  int64_t num_blocks() const { return (K + block_size - 1) / block_size; }
};

/// Quantizes a matrix for the operator MatMulNBits.
/// @param weights  [K, N], float32 or float16
/// @param codes    bytes [N, blocks, block_size * bits / 8]; positions beyond K are 0
/// @param scales   [N, blocks] of the dtype of the weights
/// @param zeros    bytes [N, blocks * bits / 8 rounded up]
/// @throws Error(invalid_argument) for tensors of the wrong size, and for a block size other than 16, 32, 64, 128 and 256.
void cut_for_matmul_nbits(const MatmulBlocks& blocks, const Tensor& weights, const Tensor& codes, const Tensor& scales,
                          const Tensor& zeros);

/// Quantizes a matrix for the operator DequantizeLinear, to 2 or 4 bits. Codes are in the order of the matrix, and signed if symmetric.
/// @param codes   bytes of K * N codes
/// @param scales  [blocks, N]
/// @param zeros   bytes of blocks * N codes
/// @return true if the codes are signed.
/// @throws like cut_for_matmul_nbits(), but any block size is allowed.
bool cut_for_dequantize_linear(const MatmulBlocks& blocks, const Tensor& weights, const Tensor& codes, const Tensor& scales,
                               const Tensor& zeros);

/// Quantizes a matrix for the operator MatMulBnb4. Each block of consecutive elements is scaled by its largest magnitude.
/// @param codes    bytes of N * K codes; the first of two is in the upper half
/// @param largest  the largest magnitude of each block, in the dtype of the weights
/// @param normal   true: NF4 codes; false: FP4 codes
void cut_for_matmul_bnb4(int64_t num_elements, int64_t block_size, bool normal, const Tensor& weights, const Tensor& codes,
                         const Tensor& largest);

}  // namespace treadle::quantization
