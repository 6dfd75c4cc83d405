#include "quantize/matmul_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/checked.h"
#include "core/values/float_types.h"
#include "kernels/gemm/four_bit_floats.h"
#include "treadle/error.h"

namespace treadle::quantization {
namespace {

void expect_elements(const char* name, const Tensor& tensor, DType dtype, int64_t least) {
  if (tensor.dtype() == dtype && tensor.is_contiguous() && tensor.num_elements() >= least) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} elements of {}; needed are {} of {}, without gaps", name,
                                                       tensor.num_elements(), name_of(tensor.dtype()), least, name_of(dtype)));
}

void expect_weights(const Tensor& weights, int64_t num_elements) {
  const bool half = weights.dtype() == DType::float16;
  expect_elements("the matrix", weights, half ? DType::float16 : DType::float32, num_elements);
}

void expect_block_size(int64_t size) {
  if (size < 16 || size > 256 || (size & (size - 1)) != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("block_size is {}; possible are 16, 32, 64, 128 and 256", size));
}

void expect_extents(const MatmulBlocks& b, const Tensor& weights) {
  const int64_t most = weights.num_elements();
  if (b.N < 1 || b.K < 1 || b.block_size < 1 || b.N > most || b.K > most)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("N = {}, K = {}, block_size = {}, of a matrix of {} elements", b.N, b.K, b.block_size, most));
}

// Truncates a number to an integer, and clamps it to 0 .. highest. NaN becomes 0.
int code_of(float value, int highest) { return value > 0 ? static_cast<int>(std::min(value, static_cast<float>(highest))) : 0; }

/// The scale and zero point of one block of a column. Codes are computed with the scale as it is stored, which may be rounded to float16.
template <typename T>
struct Scale {
  T stored{};
  float reciprocal = 0;
  int zero = 0;
};

template <typename T>
Scale<T> scale_of(float low, float high, int bits, bool symmetric) {
  const int middle = 1 << (bits - 1), highest = (1 << bits) - 1;
  Scale<T> result;
  float scale = 0;
  if (symmetric) {
    // The value with the largest magnitude gets code 0, the code that is furthest from the zero point.
    scale = (high > -low ? high : low) / static_cast<float>(-middle);
    result.zero = middle;
  } else {
    scale = (high - low) / static_cast<float>(highest);
    result.zero = scale != 0 ? code_of(std::round(-low / scale), highest) : 0;
  }
  result.stored = static_cast<T>(scale);
  const auto stored = static_cast<float>(result.stored);
  result.reciprocal = stored != 0 ? 1 / stored : 0;
  return result;
}

/// Calls scaled(block, n, scale) for each block of each column n, and then coded(k, n, scale, value) for the elements of these blocks, row
/// by row.
template <typename T, typename Scaled, typename Coded>
void each_block(const MatmulBlocks& b, const Tensor& weights, const Scaled& scaled, const Coded& coded) {
  const T* w = weights.data<T>();
  std::vector<float> low(static_cast<size_t>(b.N)), high(low.size());
  std::vector<Scale<T>> scales(low.size());
  for (int64_t block = 0; block < b.num_blocks(); ++block) {
    const int64_t begin = block * b.block_size, end = std::min(b.K, begin + b.block_size);
    std::fill(low.begin(), low.end(), 0.0F);
    std::fill(high.begin(), high.end(), 0.0F);
    for (int64_t k = begin; k < end; ++k)
      for (size_t n = 0; n < low.size(); ++n) {
        const auto value = static_cast<float>(w[k * b.N + static_cast<int64_t>(n)]);
        low[n] = std::min(low[n], value), high[n] = std::max(high[n], value);
      }
    for (size_t n = 0; n < low.size(); ++n) {
      scales[n] = scale_of<T>(low[n], high[n], b.bits, b.symmetric);
      scaled(block, static_cast<int64_t>(n), scales[n]);
    }
    for (int64_t k = begin; k < end; ++k)
      for (int64_t n = 0; n < b.N; ++n) coded(k, n, scales[static_cast<size_t>(n)], static_cast<float>(w[k * b.N + n]));
  }
}

/// Writes a code to position `index` in packed bytes, which must be zero at this position.
void put(uint8_t* bytes, int64_t index, int bits, int code) {
  const int64_t bit = index * bits;
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] | code << (bit % 8));
}

template <typename T>
void cut_nbits(const MatmulBlocks& b, const Tensor& weights, const Tensor& codes, const Tensor& scales, const Tensor& zeros) {
  const int64_t blocks = b.num_blocks(), row_bytes = blocks * b.block_size * b.bits / 8, zero_bytes = ceil_div(blocks * b.bits, 8);
  const int highest = (1 << b.bits) - 1;
  auto* out = codes.data<uint8_t>();
  auto* scales_out = scales.data<T>();
  std::memset(out, 0, static_cast<size_t>(b.N * row_bytes));
  std::vector<uint8_t> row_zeros(static_cast<size_t>(b.N * zero_bytes));
  each_block<T>(
      b, weights,
      [&](int64_t block, int64_t n, const Scale<T>& scale) {
        scales_out[n * blocks + block] = scale.stored;
        put(row_zeros.data() + n * zero_bytes, block, b.bits, scale.zero);
      },
      [&](int64_t k, int64_t n, const Scale<T>& scale, float value) {
        put(out + n * row_bytes, k, b.bits, code_of(std::round(value * scale.reciprocal + static_cast<float>(scale.zero)), highest));
      });
  if (b.symmetric) return;
  // Unused positions after the last block's zero point get the middle code.
  for (int64_t n = 0; n < b.N; ++n)
    for (int64_t block = blocks; block < zero_bytes * 8 / b.bits; ++block)
      put(row_zeros.data() + n * zero_bytes, block, b.bits, 1 << (b.bits - 1));
  std::memcpy(zeros.data<uint8_t>(), row_zeros.data(), row_zeros.size());
}

template <typename T>
void cut_linear(const MatmulBlocks& b, const Tensor& weights, const Tensor& codes, const Tensor& scales, const Tensor& zeros) {
  const int highest = (1 << b.bits) - 1, sign = b.symmetric ? 1 << (b.bits - 1) : 0;
  auto* out = codes.data<uint8_t>();
  auto* scales_out = scales.data<T>();
  uint8_t* zeros_out = b.symmetric ? nullptr : zeros.data<uint8_t>();
  std::memset(out, 0, static_cast<size_t>(ceil_div(b.K * b.N * b.bits, 8)));
  if (zeros_out != nullptr) std::memset(zeros_out, 0, static_cast<size_t>(ceil_div(b.num_blocks() * b.N * b.bits, 8)));
  each_block<T>(
      b, weights,
      [&](int64_t block, int64_t n, const Scale<T>& scale) {
        scales_out[block * b.N + n] = scale.stored;
        if (zeros_out != nullptr) put(zeros_out, block * b.N + n, b.bits, scale.zero);
      },
      [&](int64_t k, int64_t n, const Scale<T>& scale, float value) {
        // Rounds before adding the zero point, so that negative ties round down. (In cut_nbits() they round up.)
        const float code = std::round(value * scale.reciprocal) + static_cast<float>(scale.zero);
        put(out, k * b.N + n, b.bits, code_of(code, highest) ^ sign);
      });
}

// FP4 codes in ascending order of magnitude, and the midpoints between neighboring magnitudes.
constexpr int kFp4Ascending[8] = {0, 1, 6, 7, 4, 5, 2, 3};
constexpr float kFp4Bounds[7] = {0.00260417F, 0.0859375F, 0.20833333F, 0.29166667F, 0.4166667F, 0.583333F, 0.8333333F};

int fp4_code(float value) {
  const float magnitude = std::fabs(value);
  const auto place = std::count_if(std::begin(kFp4Bounds), std::end(kFp4Bounds), [&](float bound) { return magnitude > bound; });
  return kFp4Ascending[place] | (value < 0 ? 8 : 0);
}

int nf4_code(float value) {
  int code = 0;
  while (code < 15 && static_cast<double>(value) > (double{kernels::kNf4[code]} + double{kernels::kNf4[code + 1]}) / 2) ++code;
  return code;
}

template <typename T>
void cut_bnb4(int64_t num_elements, int64_t block_size, bool normal, const T* w, uint8_t* codes, T* largest) {
  std::memset(codes, 0, static_cast<size_t>(ceil_div(num_elements, int64_t{2})));
  for (int64_t begin = 0; begin < num_elements; begin += block_size) {
    const int64_t end = std::min(num_elements, begin + block_size);
    float most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(static_cast<float>(w[i])));
    largest[begin / block_size] = static_cast<T>(most);
    const float reciprocal = most != 0 ? 1 / most : 0;
    for (int64_t i = begin; i < end; ++i) {
      const float value = static_cast<float>(w[i]) * reciprocal;
      const int code = normal ? nf4_code(value) : fp4_code(value);
      codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | (i % 2 == 0 ? code << 4 : code));
    }
  }
  if (num_elements % 2 != 0 && normal) codes[num_elements / 2] |= static_cast<uint8_t>(nf4_code(0));
}

}  // namespace

void cut_for_matmul_nbits(const MatmulBlocks& b, const Tensor& weights, const Tensor& codes, const Tensor& scales, const Tensor& zeros) {
  expect_extents(b, weights);
  expect_block_size(b.block_size);
  const int64_t blocks = b.num_blocks();
  expect_weights(weights, checked_mul(b.K, b.N));
  expect_elements("the codes", codes, DType::uint8, checked_mul(b.N, blocks * b.block_size * b.bits / 8));
  expect_elements("the scales", scales, weights.dtype(), checked_mul(b.N, blocks));
  if (!b.symmetric) expect_elements("the zero points", zeros, DType::uint8, checked_mul(b.N, ceil_div(blocks * b.bits, 8)));
  if (weights.dtype() == DType::float16)
    cut_nbits<Float16>(b, weights, codes, scales, zeros);
  else
    cut_nbits<float>(b, weights, codes, scales, zeros);
}

bool cut_for_dequantize_linear(const MatmulBlocks& b, const Tensor& weights, const Tensor& codes, const Tensor& scales,
                               const Tensor& zeros) {
  expect_extents(b, weights);
  const int64_t num_elements = checked_mul(b.K, b.N), num_scales = checked_mul(b.num_blocks(), b.N);
  expect_weights(weights, num_elements);
  expect_elements("the codes", codes, DType::uint8, ceil_div(checked_mul(num_elements, b.bits), 8));
  expect_elements("the scales", scales, weights.dtype(), num_scales);
  if (!b.symmetric) expect_elements("the zero points", zeros, DType::uint8, ceil_div(checked_mul(num_scales, b.bits), 8));
  if (weights.dtype() == DType::float16)
    cut_linear<Float16>(b, weights, codes, scales, zeros);
  else
    cut_linear<float>(b, weights, codes, scales, zeros);
  return b.symmetric;
}

void cut_for_matmul_bnb4(int64_t num_elements, int64_t block_size, bool normal, const Tensor& weights, const Tensor& codes,
                         const Tensor& largest) {
  if (num_elements < 1) throw Error(ErrorCode::invalid_argument, fmt::format("a matrix of {} elements", num_elements));
  expect_block_size(block_size);
  expect_weights(weights, num_elements);
  expect_elements("the codes", codes, DType::uint8, ceil_div(num_elements, int64_t{2}));
  expect_elements("the largest magnitudes", largest, weights.dtype(), ceil_div(num_elements, block_size));
  if (weights.dtype() == DType::float16)
    cut_bnb4(num_elements, block_size, normal, weights.data<Float16>(), codes.data<uint8_t>(), largest.data<Float16>());
  else
    cut_bnb4(num_elements, block_size, normal, weights.data<float>(), codes.data<uint8_t>(), largest.data<float>());
}

}  // namespace treadle::quantization
