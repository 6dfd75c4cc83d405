// Convolution of 8-bit images by 8-bit weights into int32: ConvInteger, and QLinearConv before requantization.
#pragma once

#include "kernels/conv/conv.h"
#include "kernels/gemm/gemm_int.h"

namespace treadle::kernels {

/// Returns the number of elements of the packed weights.
int64_t conv_int_weights_size(const ConvParams& params);
/// Packs the weights. @param weights  [M, C / group, kernel]; there may be one zero point per output channel
void pack_conv_int_weights(const ConvParams& params, const ByteMatrix& weights, int16_t* packed);

size_t conv_int_scratch_bytes(const ConvParams& params, int max_threads);

/// Computes y[N, M, out] = conv(x - x_zero, w - w_zero); pads count as x_zero. x.zero_per_line is ignored.
void conv_int(const ConvParams& params, const ByteMatrix& x, const int16_t* packed_weights, int32_t* y, void* scratch, int max_threads,
              ThreadPool* pool);

}  // namespace treadle::kernels
