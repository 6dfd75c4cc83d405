// NHWC convolutions and pools of bytes: x[N, in, C] to y[N, out, M], one or two spatial axes.
//
// A convolution multiplies the gathered windows (im2col) of a few pixels at a time by the weights, four bytes of K per step. Sums are exact
// in 32 bits and are converted to bytes in registers. Depthwise convolutions, and groups of few channels, are computed directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/conv/byte_tile.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// A convolution y = table[additions(saturate(round_to_even((sum (x - x_zero) w + bias) * scale) + y_zero))].
struct ByteConv {
  const void* x = nullptr;
  bool x_signed = false, y_signed = false;
  int32_t x_zero = 0, y_zero = 0;
  const int32_t* bias = nullptr;  ///< M values, or null
  const float* scales = nullptr;  ///< M values; may be null if sums_only
  bool sums_only = false;         ///< y is int32 and gets the sums, including the bias
  const ByteAddition* additions = nullptr;
  int num_additions = 0;
  const uint8_t* table = nullptr;  ///< 256 bytes that map each result byte; null: no mapping
};

/// Returns true if the convolution is supported: it has one group, or is depthwise with one filter per channel, or has groups of few
/// channels, a multiple of four, and the CPU has AVX512-VNNI. The extents of x and y do not matter.
bool has_nhwc_bytes(const ConvParams& params);
/// Returns true if convolutions with weights of this shape, [M, C / group, kernel], are supported.
bool has_nhwc_bytes(std::span<const int64_t> weights, int64_t group);
/// Returns the size of the packed weights in bytes.
int64_t nhwc_bytes_packed_size(const ConvParams& params);
/// Packs the weights.
/// @param weights  [M, C / group, kernel]
/// @param sums     receives the sum of each filter's weights, M elements
void nhwc_bytes_pack(const ConvParams& params, const int8_t* weights, int8_t* packed, int32_t* sums);

size_t nhwc_bytes_scratch_bytes(const ConvParams& params, int max_threads);
void nhwc_bytes(const ConvParams& params, const ByteConv& conv, const int8_t* packed, const int32_t* sums, void* y, void* scratch,
                int max_threads, ThreadPool* pool);

/// Sets y to the maximum of each window. A window that is completely outside the image has the type's least value.
void max_pool_bytes(const Window& window, int64_t N, int64_t C, bool is_signed, const void* x, void* y, ThreadPool* pool);

/// Sets y[i] = table[x[i]]; y may be x.
void map_bytes(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y, ThreadPool* pool);

}  // namespace treadle::kernels
