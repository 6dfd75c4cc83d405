// Products with few terms (small K), such as gradients of weights in batches of a few rows. Writing C dominates their time.
#pragma once

#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// Returns true if outer_products() is at least as fast as the tiles.
template <typename T>
bool is_outer(const GemmShape& shape, const Epilogue<T>& epilogue);

/// Like gemm_batched(), but computes C row by row: CPUs write memory fastest in order, whereas a tile alternates between several rows of C.
/// @pre is_outer()
template <typename T>
void outer_products(const GemmShape& shape, const BatchStrides& batch, const T* A, const T* B, T* C, ThreadPool* pool);

}  // namespace treadle::kernels
