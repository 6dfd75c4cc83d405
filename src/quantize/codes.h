// Converts numbers to codes: scales, rounding and packing.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::quantization {

/// Sums of squares: of the original values, and of the errors of their codes.
struct Noise {
  double signal = 0, noise = 0;
  void add(double value, double coded) {
    signal += value * value;
    noise += (value - coded) * (value - coded);
  }
  /// Returns the signal-to-quantisation-noise ratio in dB, 10 log10(signal / noise); infinite without noise.
  double sqnr_db() const;
};

/// Weights as int8 codes whose zero point is 0.
struct ByteWeights {
  Tensor codes, scales;  // scales: one per index of the axis, or a scalar if there is no axis
  double sqnr_db = 0;
};
/// Converts weights to codes.
/// @param axis   axis of the output channels; -1: one scale for the whole tensor.
/// @param limit  largest code: 127, or 63 for codes of 7 bits.
ByteWeights byte_weights(const Tensor& weights, int axis, int limit);

/// A matrix [N, K] as codes 0 .. 2^bits - 1, with a scale and a zero point for each block along K; value = (code - zero) * scale.
struct BlockedWeights {
  int64_t N = 0, K = 0, blocks = 0, block_size = 0;
  int bits = 4;
  std::vector<uint8_t> codes;  // with the shape [N, K]
  std::vector<float> scales;   // with the shape [N, blocks]
  std::vector<uint8_t> zeros;  // with the shape [N, blocks]
  double sqnr_db = 0;
};
/// Converts weights to blocks. @param rows  weights as [N, K]
BlockedWeights blocked_weights(const float* rows, int64_t N, int64_t K, int bits, int64_t block_size, bool symmetric);

/// Packs `rows` rows of `columns` codes as MatMulNBits expects them. Each row is padded with `fill` to `padded_columns`.
Tensor packed_rows(const uint8_t* codes, int64_t rows, int64_t columns, int64_t padded_columns, int bits, uint8_t fill);

/// The scale and zero point of 8-bit affine codes.
struct Affine {
  float scale = 1;
  int32_t zero = 0;
};
/// Returns the scale and zero point for the range [low, high], extended to include 0.
Affine affine_of(double low, double high, DType dtype);

}  // namespace treadle::quantization
