// Deformable convolution over two spatial axes. Each tap reads the image at its regular position plus a given offset. T is float or double.
#pragma once

#include "kernels/conv/conv.h"

namespace treadle::kernels {

struct DeformParams {
  ConvParams conv;           ///< a convolution whose window has rank 2
  int64_t offset_group = 1;  ///< number of groups of input channels that share offsets
};

template <typename T>
size_t deform_conv_scratch_bytes(const DeformParams& params, int max_threads);

/// @param offset  [N, offset_group * taps * 2, out]: for each tap, its vertical and then its horizontal offset
/// @param mask    [N, offset_group * taps, out]: factor of each tap; null: all 1
/// @param bias    M values, or null
template <typename T>
void deform_conv(const DeformParams& params, const T* x, const T* weights, const T* offset, const T* bias, const T* mask, T* y,
                 void* scratch, int max_threads, ThreadPool* pool);

template <typename T>
struct DeformGradients {
  T *x = nullptr, *weights = nullptr, *offset = nullptr, *mask = nullptr;  ///< gradients in the operands' shapes; the mask's may be null
};

template <typename T>
size_t deform_conv_gradient_scratch_bytes(const DeformParams& params, int max_threads);

/// Computes the gradients of all operands except the bias from dy[N, M, out].
template <typename T>
void deform_conv_gradient(const DeformParams& params, const T* x, const T* weights, const T* offset, const T* mask, const T* dy,
                          const DeformGradients<T>& gradients, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
