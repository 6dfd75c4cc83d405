// Weights in blocks as ONNX Runtime's Python quantizers cut them. Its functions quantize_matmul_* are compiled; these give the same codes,
// bit for bit, so that its quantization package works without its library.
#pragma once

#include <cstdint>

#include "treadle/tensor.h"

namespace treadle::quantization {

/// A matrix [K, N], whose blocks lie along K.
struct MatmulBlocks {
  int64_t N = 0, K = 0, block_size = 0;
  int bits = 4;
  bool symmetric = false;  ///< the zero point is the middle code, and zero points are not written

  int64_t num_blocks() const { return (K + block_size - 1) / block_size; }
};

/// As MatMulNBits has them.
/// @param weights  [K, N], float32 or float16
/// @param codes    bytes [N, blocks, block_size * bits / 8]; those behind K are 0
/// @param scales   [N, blocks] of the dtype of the weights
/// @param zeros    bytes [N, blocks * bits / 8 rounded up]
/// @throws Error(invalid_argument) for sizes that do not fit, and blocks of other sizes than 16, 32, 64, 128 and 256.
void cut_for_matmul_nbits(const MatmulBlocks& blocks, const Tensor& weights, const Tensor& codes, const Tensor& scales,
                          const Tensor& zeros);

/// As DequantizeLinear has them: 2 or 4 bits, in the order of the matrix, signed if symmetric.
/// @param codes   bytes of K * N codes
/// @param scales  [blocks, N]
/// @param zeros   bytes of blocks * N codes
/// @return whether codes are signed.
/// @throws as above; blocks have any size.
bool cut_for_dequantize_linear(const MatmulBlocks& blocks, const Tensor& weights, const Tensor& codes, const Tensor& scales,
                               const Tensor& zeros);

/// As MatMulBnb4 has them: blocks of the elements in their order, each scaled by its largest magnitude.
/// @param codes    bytes of N * K codes, the first of two in the upper half
/// @param largest  one of each block, of the dtype of the weights
/// @param normal   codes of NF4, and not of FP4
void cut_for_matmul_bnb4(int64_t num_elements, int64_t block_size, bool normal, const Tensor& weights, const Tensor& codes,
                         const Tensor& largest);

}  // namespace treadle::quantization
