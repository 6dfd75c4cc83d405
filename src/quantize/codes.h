// Converts weights to quantized codes: computes scales, rounds, and packs codes into bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::quantization {

/// Sums of squares: `signal` of the original values, `noise` of the errors that quantization causes.
struct Noise {
  double signal = 0, noise = 0;
  void add(double value, double coded) {
    signal += value * value;
    noise += (value - coded) * (value - coded);
  }
  /// Returns the signal-to-quantization-noise ratio in dB: 10 log10(signal / noise). It is infinite if there is no noise.
  double sqnr_db() const;
};

/// Weights as int8 codes with the zero point 0: weight = code * scale.
struct ByteWeights {
  Tensor codes, scales;  // scales: one per output channel, or a scalar
  double sqnr_db = 0;
};
/// Quantizes weights to int8.
/// @param axis   axis of the output channels; -1: one scale for the whole tensor.
/// @param limit  largest code: 127, or 63 for codes of 7 bits.
ByteWeights byte_weights(const Tensor& weights, int axis, int limit);

/// A matrix [N, K] as codes from 0 to 2^bits - 1. Each block along K has a scale and a zero point: value = (code - zero) * scale.
struct BlockedWeights {
  int64_t N = 0, K = 0, blocks = 0, block_size = 0;
  int bits = 4;
  std::vector<uint8_t> codes;  // with the shape [N, K]
  std::vector<float> scales;   // with the shape [N, blocks]
  std::vector<uint8_t> zeros;  // with the shape [N, blocks]
  double sqnr_db = 0;
};
/// Quantizes a matrix in blocks. @param rows  the weights, [N, K]
BlockedWeights blocked_weights(const float* rows, int64_t N, int64_t K, int bits, int64_t block_size, bool symmetric);

/// Packs a matrix of codes, [rows, columns], as MatMulNBits expects them. Pads each row with `fill` to `padded_columns` codes.
Tensor packed_rows(const uint8_t* codes, int64_t rows, int64_t columns, int64_t padded_columns, int bits, uint8_t fill);

/// The scale and zero point of a value with 8-bit codes: value = (code - zero) * scale.
struct Affine {
  float scale = 1;
  int32_t zero = 0;
};
/// Returns the scale and zero point for values in [low, high]. Extends the range to include 0.
Affine affine_of(double low, double high, DType dtype);

}  // namespace treadle::quantization
