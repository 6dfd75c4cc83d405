// Gradients of convolutions with channels innermost, and the convolution with weights that are packed in every run; in float32, or in
// bfloat16 with sums in float32 where that pays.
//
// ConvParams are those of the convolution: x[N, in, C], W[M, C / group, kernel], y[N, out, M]. The gradient of the input is a convolution
// of dy for each phase of the strides, by the ways of nhwc.h; that of the weights is one product over all pixels, or Winograd's
// (winograd_gradient.h).
#pragma once

#include <cstddef>
#include <optional>

#include "core/thread_pool.h"
#include "kernels/conv/nhwc.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

using Bf16Choice = std::optional<Bf16Form>;  // none: float32

size_t nhwc_conv_unpacked_scratch_bytes(const ConvParams& params, NhwcMethod method, int max_threads, Bf16Choice bf16 = {});
/// nhwc_conv with weights as ONNX has them. @param method  nhwc_method's, with ConvChoice::packs_in_run
void nhwc_conv_unpacked(const ConvParams& params, NhwcMethod method, const float* x, const float* weights, float* y,
                        const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

/// Whether conv_grad_input_nhwc can take it: not where strides and dilations meet with pads that the window does not reach.
bool conv_grad_input_nhwc_fits(const ConvParams& params);
size_t conv_grad_input_nhwc_scratch_bytes(const ConvParams& params, const ConvChoice& choice, int max_threads, Bf16Choice bf16 = {});
/// dx[N, in, C] of dy[N, out, M].
void conv_grad_input_nhwc(const ConvParams& params, const ConvChoice& choice, const float* dy, const float* weights, float* dx,
                          void* scratch, int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

size_t conv_grad_weights_nhwc_scratch_bytes(const ConvParams& params, const ConvChoice& choice, int max_threads, Bf16Choice bf16 = {});
/// dw[M, C / group, kernel] of dy[N, out, M] and x[N, in, C]. The order of the sums depends on sizes only.
void conv_grad_weights_nhwc(const ConvParams& params, const ConvChoice& choice, const float* dy, const float* x, float* dw, void* scratch,
                            int max_threads, ThreadPool* pool, Bf16Choice bf16 = {});

}  // namespace treadle::kernels
