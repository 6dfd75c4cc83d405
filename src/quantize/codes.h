// Numbers into codes: scales, rounding, packing.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::quantization {

/// How far codes are from what they stand for.
struct Noise {
  double signal = 0, noise = 0;
  void add(double value, double coded) {
    signal += value * value;
    noise += (value - coded) * (value - coded);
  }
  /// 10 log10(signal / noise); infinite without noise.
  double sqnr_db() const;
};

/// int8 codes of a float32 tensor, zero points 0.
struct ByteWeights {
  Tensor codes, scales;  // scales: one for each place of the axis, or a scalar
  double sqnr_db = 0;
};
/// @param axis   of the output channels; -1: one scale for all.
/// @param limit  largest code: 127, or 63 for 7 bits.
ByteWeights byte_weights(const Tensor& weights, int axis, int limit);

/// Codes 0 .. 2^bits - 1 of a matrix [N, K], in blocks along K; value = (code - zero) * scale.
struct BlockedWeights {
  int64_t N = 0, K = 0, blocks = 0, block_size = 0;
  int bits = 4;
  std::vector<uint8_t> codes;  // [N, K]
  std::vector<float> scales;   // [N, blocks]
  std::vector<uint8_t> zeros;  // [N, blocks]
  double sqnr_db = 0;
};
/// @param rows  [N, K]
BlockedWeights blocked_weights(const float* rows, int64_t N, int64_t K, int bits, int64_t block_size, bool symmetric);

/// `rows` rows of `columns` codes, each row padded with `fill` to whole bytes: as MatMulNBits has them.
Tensor packed_rows(const uint8_t* codes, int64_t rows, int64_t columns, int64_t padded_columns, int bits, uint8_t fill);

/// The codes of an affine 8-bit range.
struct Affine {
  float scale = 1;
  int32_t zero = 0;
};
/// For [low, high], widened to hold 0.
Affine affine_of(double low, double high, DType dtype);

}  // namespace treadle::quantization
