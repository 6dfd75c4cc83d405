// NHWC convolutions of one small image with weights that are computed in the run, if packing them would take longer than the products. The
// kernels of conv.h read weights in place, so x is transposed to NCHW for them, and the result is transposed back.
//
// ConvParams, operands and results are as in conv_gradient_nhwc.h.
#pragma once

#include <cstddef>

#include "core/threads/thread_pool.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

bool conv_in_planes_pays(const ConvParams& params);
size_t conv_in_planes_scratch_bytes(const ConvParams& params, int max_threads);
void conv_in_planes(const ConvParams& params, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue, void* scratch,
                    int max_threads, ThreadPool* pool);

bool conv_grad_input_in_planes_pays(const ConvParams& params);
size_t conv_grad_input_in_planes_scratch_bytes(const ConvParams& params, int max_threads);
void conv_grad_input_in_planes(const ConvParams& params, const float* dy, const float* weights, float* dx, void* scratch, int max_threads,
                               ThreadPool* pool);

bool conv_grad_weights_in_planes_pays(const ConvParams& params);
size_t conv_grad_weights_in_planes_scratch_bytes(const ConvParams& params, int max_threads);
void conv_grad_weights_in_planes(const ConvParams& params, const float* dy, const float* x, float* dw, void* scratch, int max_threads,
                                 ThreadPool* pool);

}  // namespace treadle::kernels
