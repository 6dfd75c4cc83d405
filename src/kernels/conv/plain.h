// Convolutions as direct loops, for types that models rarely use (float64).
#pragma once

#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// Like conv(), with a bias of M values or null. T is double.
template <typename T>
void conv_plain(const ConvParams& params, const T* x, const T* weights, const T* bias, T* y, ThreadPool* pool);

/// Like conv_transpose() of conv.h, with a bias of M values or null. T is double.
template <typename T>
void conv_transpose_plain(const ConvParams& params, const T* x, const T* weights, const T* bias, T* y, ThreadPool* pool);

}  // namespace treadle::kernels
