// Products of float32 matrices computed in bfloat16 or float16, with float32 sums, row-major: C = f(alpha A B + beta bias + residual).
//
// B is packed once, in pairs of adjacent k. A is rounded at the beginning of each product. The order of the sums over k does not depend on
// the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/threads/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// Says how the operands of a product are represented.
enum class Bf16Form : uint8_t {
  one,    ///< the nearest bfloat16: 8 bits of mantissa
  three,  ///< the sum of two bfloat16 numbers, hi + lo; computing hi hi + hi lo + lo hi has a relative error of about 2^-16 of the operands
  /// The nearest float16: 11 bits of mantissa, infinity above 65504, zero below 3e-8. No CPU multiplies float16 vectors with float32 sums,
  /// so operands are stored in 16 bits and widened in registers.
  float16,
};

/// A view of a packed matrix, which does not own the memory.
struct PackedBf16 {
  int64_t K = 0, N = 0;
  Bf16Form form = Bf16Form::one;
  const uint32_t* data = nullptr;
};

/// Returns the number of 32-bit words that pack_bf16 writes.
int64_t packed_bf16_size(int64_t K, int64_t N, Bf16Form form);

/// Packs B.
/// @param data  packed_bf16_size(K, N, form) words, aligned to 64 bytes.
/// @param B  K x N with row stride ldb; or, if `transposed`, N x K with row stride ldb.
PackedBf16 pack_bf16(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, Bf16Form form, uint32_t* data,
                     ThreadPool* pool = nullptr);

/// Returns the scratch bytes of gemm_bf16() for the rounded A.
size_t gemm_bf16_scratch_bytes(int64_t M, int64_t K, Bf16Form form);

/// Computes C (M x N, row stride ldc) = f(alpha A B + beta bias + residual). K may be 0: the product is then 0.
/// @param A  rows of K contiguous elements, lda apart
/// @param scratch  gemm_bf16_scratch_bytes(M, K, form), aligned to 64 bytes
/// @param emulated  do not use the CPU's bfloat16 instructions
void gemm_bf16(int64_t M, const float* A, int64_t lda, const PackedBf16& B, float* C, int64_t ldc, const Epilogue<float>& epilogue,
               void* scratch, ThreadPool* pool, bool emulated = false);

/// Computes one product with an unpacked B on the calling thread. `shape.batch` is ignored.
/// @pre shape.a_col == 1
/// @param scratch  gemm_bf16_unpacked_scratch_bytes(shape, form), aligned to 64 bytes
void gemm_bf16_unpacked(const GemmShape& shape, const float* A, const float* B, float* C, const Epilogue<float>& epilogue, Bf16Form form,
                        void* scratch);
size_t gemm_bf16_unpacked_scratch_bytes(const GemmShape& shape, Bf16Form form);

/// Like gemm_batched(), in bfloat16: rounds both operands and packs B during the run. A may be transposed.
/// @param scratch  gemm_bf16_batched_scratch_bytes(shape, form, max_threads), aligned to 64 bytes
void gemm_bf16_batched(const GemmShape& shape, const BatchStrides& batch, const float* A, const float* B, float* C,
                       const Epilogue<float>& epilogue, Bf16Form form, void* scratch, int max_threads, ThreadPool* pool);
size_t gemm_bf16_batched_scratch_bytes(const GemmShape& shape, Bf16Form form, int max_threads);

}  // namespace treadle::kernels
