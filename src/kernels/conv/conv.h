// float32 convolution in NCHW: x[N, C, in], W[M, C / group, kernel], y[N, M, out], one to three spatial axes.
//
// For one image, y is the product of W (M x C*kernel) and the image's columns (C*kernel x out), by implicit im2col: the columns of 64
// outputs at a time are written straight into a GEMM panel, which stays in L2 while all rows of W are multiplied by it. W is read in place.
// Depthwise convolutions are computed directly. If weights are constant, the layout pass selects the kernels of nhwc.h instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/threads/thread_pool.h"
#include "kernels/conv/window.h"
#include "kernels/elementwise/unary_f32.h"
#include "treadle/tensor.h"

namespace treadle::kernels {

struct ConvParams {
  int64_t N = 1, C = 1, M = 1, group = 1;  ///< C and M are totals over all groups
  Window window;
  int64_t x_pixel = 0, y_pixel = 0;  ///< NHWC only: pixel stride in floats if x or y is a channel slice of a larger image; 0: contiguous
  bool x_planes = false;             ///< NHWC kernels only: x is in NCHW layout, and only y in NHWC
  int64_t x_step() const { return x_pixel > 0 ? x_pixel : C; }
  int64_t y_step() const { return y_pixel > 0 ? y_pixel : M; }
};

/// The computation after a convolution: y = f(conv + bias + residual).
struct ConvEpilogue {
  const float* bias = nullptr;      ///< M values, or null
  const float* residual = nullptr;  ///< shape of y, or null; may be y itself
  Unary activation = Unary::none;
  float a = 0, b = 0;
};

/// Checks the number of groups. @throws Error(invalid_argument) if it does not divide both C and M.
void check_conv(const ConvParams& params);

/// Returns the scratch bytes of conv() for a call on at most `max_threads` threads.
size_t conv_scratch_bytes(const ConvParams& params, int max_threads);

/// Computes the convolution. @param scratch  conv_scratch_bytes(params, max_threads), aligned to 64 bytes
void conv(const ConvParams& params, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
          int max_threads, ThreadPool* pool);

/// Transposed convolution: x[N, C, in], W[C, M / group, kernel], y[N, M, out]. `window` describes the forward convolution whose gradient
/// this is: window.in is the extent of y, and window.out is the extent of x.
size_t conv_transpose_scratch_bytes(const ConvParams& params, int max_threads);
void conv_transpose(const ConvParams& params, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
                    int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
