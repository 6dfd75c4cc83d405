// Convolution in float32, NCHW: x[N, C, in], W[M, C / group, kernel], y[N, M, out], one to three spatial axes.
//
// y of one image is the product W (M x C*kernel) by the image's columns (C*kernel x out). The columns of 64 outputs at a time are written
// straight into a GEMM panel, which all rows of W then pass over while it is in L2; W is read in place. Depthwise convolutions are direct.
// With constant weights the layout pass takes the kernels of nhwc.h instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/thread_pool.h"
#include "kernels/conv/window.h"
#include "kernels/elementwise/unary_f32.h"
#include "treadle/tensor.h"

namespace treadle::kernels {

struct ConvParams {
  int64_t N = 1, C = 1, M = 1, group = 1;  ///< C and M over all groups
  Window window;
  int64_t x_pixel = 0, y_pixel = 0;  ///< channels innermost: floats from pixel to pixel where x and y are parts of wider images; 0: C, M
  bool x_planes = false;             ///< of kernels with channels innermost: x is [N, C, in] all the same
  int64_t x_step() const { return x_pixel > 0 ? x_pixel : C; }
  int64_t y_step() const { return y_pixel > 0 ? y_pixel : M; }
};

/// y = f(conv + bias + residual)
struct ConvEpilogue {
  const float* bias = nullptr;      ///< M values, or null
  const float* residual = nullptr;  ///< as y, or null; may be y itself
  Unary activation = Unary::none;
  float a = 0, b = 0;
};

/// @throws Error(invalid_argument) if group divides neither C nor M.
void check_conv(const ConvParams& params);

/// Working memory of conv for a call on at most `max_threads` threads.
size_t conv_scratch_bytes(const ConvParams& params, int max_threads);

/// @param scratch  conv_scratch_bytes(params, max_threads), aligned to 64 bytes
void conv(const ConvParams& params, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
          int max_threads, ThreadPool* pool);

/// The transposed convolution: x[N, C, in], W[C, M / group, kernel], y[N, M, out]. `window` describes the convolution whose gradient it is:
/// its input is y (window.in) and its output is x (window.out).
size_t conv_transpose_scratch_bytes(const ConvParams& params, int max_threads);
void conv_transpose(const ConvParams& params, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
                    int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
