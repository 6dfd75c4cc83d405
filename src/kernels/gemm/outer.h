// Products of few terms, as gradients of weights are in batches of a few rows. Writing C is all that takes time.
#pragma once

#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// Whether outer_products() is the faster way, or as fast.
template <typename T>
bool is_outer(const GemmShape& shape, const Epilogue<T>& epilogue);

/// gemm_batched() row by row: a row of C that is written whole, one after the other, is what processors write fastest. A tile would write
/// pieces of several. @pre is_outer()
template <typename T>
void outer_products(const GemmShape& shape, const BatchStrides& batch, const T* A, const T* B, T* C, ThreadPool* pool);

}  // namespace treadle::kernels
