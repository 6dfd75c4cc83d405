// Products of float32 matrices that are computed in bfloat16, or in float16: C = f(alpha A B + beta bias + residual), sums in float32,
// row-major.
//
// B is packed once, in pairs of k; A is rounded at the beginning of each product. Every element of C is one chain of sums over k in order
// (parts of it, if k is deep), whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// How the operands of a product are represented.
enum class Bf16Form : uint8_t {
  one,    ///< by the nearest bfloat16: 8 bits of mantissa
  three,  ///< by two of them, hi + lo; the products hi hi + hi lo + lo hi have an error of some 2^-16 of the operands
  /// By the nearest float16: 11 bits of mantissa, infinity above 65504, zero below 3e-8. No processor's products of it sum in float32 with
  /// vectors, so that operands are kept in 16 bits and widened where they meet.
  float16,
};

/// A packed matrix. A view: whoever packed it keeps the memory.
struct PackedBf16 {
  int64_t K = 0, N = 0;
  Bf16Form form = Bf16Form::one;
  const uint32_t* data = nullptr;
};

/// Words that pack_bf16 writes.
int64_t packed_bf16_size(int64_t K, int64_t N, Bf16Form form);

/// Packs B. @param data  packed_bf16_size(K, N, form) words, aligned to 64 bytes.
/// @param B  K x N with row stride ldb; or, if `transposed`, N x K with row stride ldb.
PackedBf16 pack_bf16(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, Bf16Form form, uint32_t* data,
                     ThreadPool* pool = nullptr);

/// What gemm_bf16 needs to hold A in.
size_t gemm_bf16_scratch_bytes(int64_t M, int64_t K, Bf16Form form);

/// C (M x N, row stride ldc) = f(alpha A B + beta bias + residual). K may be 0: the product is then 0.
/// @param A  rows of K contiguous elements, lda apart
/// @param scratch  gemm_bf16_scratch_bytes(M, K, form), aligned to 64 bytes
/// @param emulated  do without the processor's bfloat16 products
void gemm_bf16(int64_t M, const float* A, int64_t lda, const PackedBf16& B, float* C, int64_t ldc, const Epilogue<float>& epilogue,
               void* scratch, ThreadPool* pool, bool emulated = false);

/// One product whose B is not packed beforehand, on the calling thread. `shape.batch` is not looked at.
/// @pre shape.a_col == 1
/// @param scratch  gemm_bf16_unpacked_scratch_bytes(shape, form), aligned to 64 bytes
void gemm_bf16_unpacked(const GemmShape& shape, const float* A, const float* B, float* C, const Epilogue<float>& epilogue, Bf16Form form,
                        void* scratch);
size_t gemm_bf16_unpacked_scratch_bytes(const GemmShape& shape, Bf16Form form);

/// gemm_batched in bfloat16: both operands are rounded, and B packed, in the run. A may be transposed.
/// @param scratch  gemm_bf16_batched_scratch_bytes(shape, form, max_threads), aligned to 64 bytes
void gemm_bf16_batched(const GemmShape& shape, const BatchStrides& batch, const float* A, const float* B, float* C,
                       const Epilogue<float>& epilogue, Bf16Form form, void* scratch, int max_threads, ThreadPool* pool);
size_t gemm_bf16_batched_scratch_bytes(const GemmShape& shape, Bf16Form form, int max_threads);

}  // namespace treadle::kernels
