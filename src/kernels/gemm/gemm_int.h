// Integer matrix products. Packing widens 8-bit operands to 16 bits and subtracts their zero points, so that a sum of two products is exact
// in 32 bits, whether operands are signed or unsigned. Sums wrap around as int32 does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/threads/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

/// An 8-bit matrix, signed or unsigned. `zero` has the same type: null (zero point 0), one value, or one for each row of A or column of B.
struct ByteMatrix {
  const void* data = nullptr;
  bool is_signed = false;
  const void* zero = nullptr;
  bool zero_per_line = false;
  /// Number of elements and of zero points per matrix, for stacks of matrices with separate zero points; 0: all matrices share them.
  int64_t elements = 0, lines = 0;
};
int32_t zero_of(const ByteMatrix& matrix, int64_t line);

/// Returns the number of elements of the packed A: M rows of K elements, padded with a zero if K is odd.
inline int64_t packed_a_i16_size(int64_t M, int64_t K) { return M * ((K + 1) / 2 * 2); }
/// Packs A. @param lda  row stride of A in elements
void pack_a_i16(const ByteMatrix& A, int64_t M, int64_t K, int64_t lda, int16_t* data, ThreadPool* pool = nullptr);

/// B packed in panels like PackedB's, with each two rows interleaved.
struct PackedI16 {
  int64_t K = 0, N = 0;
  const int16_t* data = nullptr;
};
int64_t packed_b_i16_size(int64_t K, int64_t N);
/// Packs B. @param B  K x N with row stride ldb; or, if `transposed`, N x K with row stride ldb
PackedI16 pack_b_i16(const ByteMatrix& B, int64_t K, int64_t N, int64_t ldb, bool transposed, int16_t* data, ThreadPool* pool = nullptr);

/// Computes C (M x N, row stride ldc) = A B.
void gemm_i16(int64_t M, const int16_t* packed_a, const PackedI16& B, int32_t* C, int64_t ldc, ThreadPool* pool);

/// Computes MatMulInteger, and packs both operands during the run. ByteMatrix says whether matrices share zero points.
size_t gemm_int_scratch_bytes(const GemmShape& shape);
void gemm_int(const GemmShape& shape, const BatchStrides& batch, const ByteMatrix& A, const ByteMatrix& B, int32_t* C, void* scratch,
              ThreadPool* pool);
/// Like gemm_int(), with B packed beforehand.
size_t gemm_int_packed_scratch_bytes(const GemmShape& shape);
void gemm_int(const GemmShape& shape, const BatchStrides& batch, const ByteMatrix& A, const PackedI16& B, int32_t* C, void* scratch,
              ThreadPool* pool);

/// Computes dst = saturate(round_to_even(src * scale) + zero), as int8 or uint8.
void requantize(const int32_t* src, int64_t n, float scale, int32_t zero, bool is_signed, void* dst);

/// Computes C = A B for any arithmetic type, without packing; used for MatMul's integer types. @pre A's a_col is 1 and B is not transposed
template <typename T>
void gemm_plain(const GemmShape& shape, const BatchStrides& batch, const T* A, const T* B, T* C, ThreadPool* pool);

}  // namespace treadle::kernels
