#include "quantize/codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/checked.h"

namespace treadle::quantization {
namespace {

float step_of(float largest, int limit) {
  const float step = largest / static_cast<float>(limit);
  // A subnormal step may have no finite reciprocal. All values are then practically zero, so the step 1 is as good as any other.
  return step >= std::numeric_limits<float>::min() ? step : 1.0F;
}

int rounded(float value, float step, int zero, int low, int high) {
  return std::clamp(static_cast<int>(std::nearbyint(std::clamp(value / step, -1e6F, 1e6F))) + zero, low, high);
}

double squared_error(const float* values, int64_t n, float step, int zero, int high) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = double{values[i]} - double{step} * (rounded(values[i], step, zero, 0, high) - zero);
    sum += difference * difference;
  }
  return sum;
}

struct Block {
  float step = 1;
  int zero = 0;
};

/// Returns the step (scale) and zero point for one block of weights. With 4 bits, a smaller range that clips a few large values often has a
/// smaller error, so several ranges are tried.
Block block_of(const float* values, int64_t n, int bits, bool symmetric) {
  const int high = (1 << bits) - 1, middle = 1 << (bits - 1);
  float lowest = 0, highest = 0;
  for (int64_t i = 0; i < n; ++i) lowest = std::min(lowest, values[i]), highest = std::max(highest, values[i]);
  Block best;
  double least = std::numeric_limits<double>::infinity();
  constexpr std::array<float, 5> kShrinks{1.0F, 0.95F, 0.9F, 0.85F, 0.8F};
  for (float shrink : kShrinks) {
    Block block;
    if (symmetric) {
      // The value with the largest magnitude gets the code with the largest magnitude (-8 of -8 .. 7), so the step has the opposite sign.
      const float extreme = -lowest > highest ? lowest : highest;
      block.zero = middle;
      block.step = step_of(std::fabs(extreme) * shrink, middle) * (extreme > 0 ? -1.0F : 1.0F);
    } else {
      block.step = step_of((highest - lowest) * shrink, high);
      block.zero = std::clamp(static_cast<int>(std::nearbyint(-lowest * shrink / block.step)), 0, high);
    }
    const double error = squared_error(values, n, block.step, block.zero, high);
    if (error < least) least = error, best = block;
    if (bits == 8) break;
  }
  return best;
}

}  // namespace

double Noise::sqnr_db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  if (signal == 0) return -std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

ByteWeights byte_weights(const Tensor& weights, int axis, int limit) {
  const Tensor w = weights.contiguous();
  const float* values = w.data<float>();
  const Shape& shape = w.shape();
  const int64_t channels = axis < 0 ? 1 : shape[axis], inner = axis < 0 ? w.num_elements() : shape.product(axis + 1, shape.rank()),
                stride = channels * inner;
  std::vector<float> largest(static_cast<size_t>(channels));
  auto each = [&](auto&& fn) {
    for (int64_t i = 0; stride > 0 && i < w.num_elements(); ++i) fn(i, static_cast<size_t>(i % stride / inner));
  };
  each([&](int64_t i, size_t channel) { largest[channel] = std::max(largest[channel], std::fabs(values[i])); });
  ByteWeights result{Tensor(DType::int8, shape), Tensor(DType::float32, axis < 0 ? Shape{} : Shape{channels})};
  float* scales = result.scales.data<float>();
  for (int64_t c = 0; c < channels; ++c) scales[c] = step_of(largest[static_cast<size_t>(c)], limit);
  Noise noise;
  each([&](int64_t i, size_t channel) {
    const int code = rounded(values[i], scales[channel], 0, -limit, limit);
    result.codes.data<int8_t>()[i] = static_cast<int8_t>(code);
    noise.add(values[i], double{scales[channel]} * code);
  });
  result.sqnr_db = noise.sqnr_db();
  return result;
}

BlockedWeights blocked_weights(const float* rows, int64_t N, int64_t K, int bits, int64_t block_size, bool symmetric) {
  BlockedWeights result{N, K, ceil_div(K, block_size), block_size, bits};
  result.codes.resize(static_cast<size_t>(checked_mul(N, K)));
  result.scales.resize(static_cast<size_t>(N * result.blocks));
  result.zeros.resize(result.scales.size());
  Noise noise;
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t b = 0; b < result.blocks; ++b) {
      const int64_t begin = b * block_size, end = std::min(K, begin + block_size);
      const float* values = rows + n * K + begin;
      const Block block = block_of(values, end - begin, bits, symmetric);
      const auto at = static_cast<size_t>(n * result.blocks + b);
      result.scales[at] = block.step, result.zeros[at] = static_cast<uint8_t>(block.zero);
      for (int64_t i = 0; i < end - begin; ++i) {
        const int code = rounded(values[i], block.step, block.zero, 0, (1 << bits) - 1);
        result.codes[static_cast<size_t>(n * K + begin + i)] = static_cast<uint8_t>(code);
        noise.add(values[i], double{block.step} * (code - block.zero));
      }
    }
  }
  result.sqnr_db = noise.sqnr_db();
  return result;
}

Tensor packed_rows(const uint8_t* codes, int64_t rows, int64_t columns, int64_t padded_columns, int bits, uint8_t fill) {
  const int64_t per_byte = 8 / bits, row_bytes = ceil_div(padded_columns, per_byte);
  Tensor result(DType::uint8, Shape{rows, row_bytes});
  uint8_t* out = result.data<uint8_t>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < row_bytes; ++i) {
      unsigned byte = 0;
      for (int64_t j = 0; j < per_byte; ++j) {
        const int64_t column = i * per_byte + j;
        const unsigned code = column < columns ? codes[r * columns + column] : fill;
        byte |= code << (j * bits);
      }
      out[r * row_bytes + i] = static_cast<uint8_t>(byte);
    }
  }
  return result;
}

Affine affine_of(double low, double high, DType dtype) {
  low = std::min(low, 0.0), high = std::max(high, 0.0);
  const int least = dtype == DType::int8 ? -128 : 0;
  Affine affine;
  affine.scale = step_of(static_cast<float>(high - low), 255);
  affine.zero = std::clamp(least + static_cast<int>(std::nearbyint(-low / double{affine.scale})), least, least + 255);
  return affine;
}

}  // namespace treadle::quantization
