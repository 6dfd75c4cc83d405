// Gradients of NHWC convolutions, and convolutions whose weights are packed in every run. They are computed in float32, or in bfloat16 with
// float32 sums if that is faster. ConvParams are those of the forward convolution: x[N, in, C], W[M, C / group, kernel], y[N, out, M]. The
// input's gradient is computed by the methods of nhwc.h, with one convolution of dy per phase (position modulo the strides). The weights'
// gradient is one product over all pixels, or is computed by Winograd's method (winograd_gradient.h).
#pragma once

#include <cstddef>
#include <optional>

#include "core/threads/thread_pool.h"
#include "kernels/conv/nhwc.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

using Bf16Choice = std::optional<Bf16Form>;  // no value means float32

size_t nhwc_conv_unpacked_scratch_bytes(const ConvParams& params, NhwcMethod method, int max_threads, Bf16Choice bf16 = {});
/// Like nhwc_conv(), with unpacked weights in ONNX's layout. @param method  chosen by nhwc_method() with ConvChoice::packs_in_run
void nhwc_conv_unpacked(const ConvParams& params, NhwcMethod method, const float* x, const float* weights, float* y,
                        const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

/// Returns false if conv_grad_input_nhwc() does not support the window: with three spatial axes, or with dilations and pads larger than the
/// extent that the dilated kernel spans.
bool conv_grad_input_nhwc_fits(const ConvParams& params);
size_t conv_grad_input_nhwc_scratch_bytes(const ConvParams& params, const ConvChoice& choice, int max_threads, Bf16Choice bf16 = {});
/// Computes dx[N, in, C] from dy[N, out, M].
void conv_grad_input_nhwc(const ConvParams& params, const ConvChoice& choice, const float* dy, const float* weights, float* dx,
                          void* scratch, int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

size_t conv_grad_weights_nhwc_scratch_bytes(const ConvParams& params, const ConvChoice& choice, int max_threads, Bf16Choice bf16 = {});
/// Computes dw[M, C / group, kernel] from dy[N, out, M] and x[N, in, C]. The order of the sums depends on the sizes only.
void conv_grad_weights_nhwc(const ConvParams& params, const ConvChoice& choice, const float* dy, const float* x, float* dw, void* scratch,
                            int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

}  // namespace treadle::kernels
