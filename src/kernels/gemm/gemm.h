// Matrix products in float32 and float64: C = f(alpha A B + beta bias + residual), row-major.
//
// B is packed into panels: the N columns, rounded up to whole vectors, are split evenly into panels of at most four vectors. A panel stores
// its K rows one after the other, so that the micro-kernel reads it as one stream. A is read with any strides.
//
// Terms are summed in the order of k, in chains of at most Epilogue::longest_sum terms (shorter where a deep K is split), and the sums of
// the chains are added. A tile of a single row alternates between two accumulators. The order does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/threads/thread_pool.h"
#include "kernels/elementwise/unary_f32.h"
#include "treadle/tensor.h"

namespace treadle::kernels {

/// The computation that is applied to a tile of A B while it is in registers or L1: C = f(alpha A B + beta bias + residual).
template <typename T>
struct Epilogue {
  T alpha = 1;
  /// bias(m, n) = bias[m * bias_row + n * bias_col]; null: no bias. The strides are {0, 1} for a bias per column, {1, 0} per row, and {its
  /// row stride, 1} for a matrix.
  const T* bias = nullptr;
  int64_t bias_row = 0, bias_col = 1;
  T beta = 1;
  /// residual(m, n) = residual[m * residual_row + n]; null: no residual. May be C itself.
  const T* residual = nullptr;
  int64_t residual_row = 0;
  Unary activation = Unary::none;  // float64 supports only none, relu and clip
  float a = 0, b = 0;
  /// Maximum number of terms that are summed in one accumulator before it is added to the total. Longer chains would dominate the rounding
  /// error of a deep K.
  int64_t longest_sum = 512;
};

/// A view of a packed matrix, which does not own the memory.
template <typename T>
struct PackedB {
  int64_t K = 0, N = 0;
  const T* data = nullptr;
  const T* next = nullptr;  ///< the memory that is read after this matrix, to be prefetched; null if unknown
  /// True: the panels are processed from last to first. If consecutive products alternate in direction, each finds in L1 the panels that
  /// the previous one used last.
  bool backwards = false;
};

/// A packed matrix that owns its memory, for constant weights.
template <typename T>
struct OwnedPackedB {
  PackedB<T> view;
  std::shared_ptr<Storage> storage;
};

/// Returns the number of elements that pack_b writes: K rows of N elements, with N rounded up to whole vectors of this machine.
template <typename T>
int64_t packed_b_size(int64_t K, int64_t N);

/// Packs B. `data` has packed_b_size(K, N) elements, preferably aligned to 64 bytes. @param B  K x N with row stride ldb; or, if
/// `transposed`, N x K with row stride ldb.
template <typename T>
PackedB<T> pack_b(const T* B, int64_t K, int64_t N, int64_t ldb, bool transposed, T* data, ThreadPool* pool = nullptr);

template <typename T>
OwnedPackedB<T> pack_b(const T* B, int64_t K, int64_t N, int64_t ldb, bool transposed);

/// Restores the matrix that was packed. @param B  K x N, row stride N
template <typename T>
void unpack_b(const PackedB<T>& packed, T* B);

/// Describes the matrix A(m, k) = data[m * row + k * col].
template <typename T>
struct MatrixA {
  const T* data = nullptr;
  int64_t row = 0, col = 1;
};

/// Computes C (M x N, row stride ldc) = f(alpha A B + beta bias + residual). K may be 0: the product is then 0.
template <typename T>
void gemm(int64_t M, const MatrixA<T>& A, const PackedB<T>& B, T* C, int64_t ldc, const Epilogue<T>& epilogue, ThreadPool* pool);

/// The shape of a batch of products whose B is packed during the run; covers MatMul and Gemm.
struct GemmShape {
  int64_t M = 0, N = 0, K = 0;
  int64_t a_row = 0, a_col = 1;  ///< A(m, k) = A[m * a_row + k * a_col]
  int64_t ldb = 0;               ///< row stride of B, or of B's transpose if b_transposed
  bool b_transposed = false;
  int64_t ldc = 0;
  int64_t batch = 1;  ///< number of products; see num_products()
};

/// Strides that give the element offsets of each product's matrices; a broadcast dimension has stride 0. broadcast_batches() computes them.
struct BatchStrides {
  static constexpr int kMaxDims = 8;
  int rank = 0;  ///< 0: there is one product
  int64_t dims[kMaxDims] = {}, a[kMaxDims] = {}, b[kMaxDims] = {}, c[kMaxDims] = {};
};

/// Returns the products of numpy.matmul: the leading dimensions of A and B, broadcast against each other and merged if possible.
/// @param a_dims, b_dims      leading dimensions, without the last two
/// @param a_size, b_size, c_size  elements of one matrix; A, B and C are contiguous batches @throws Error(invalid_argument) if they do not
/// broadcast; Error(not_implemented) if more than kMaxDims dimensions remain.
BatchStrides broadcast_batches(std::span<const int64_t> a_dims, std::span<const int64_t> b_dims, int64_t a_size, int64_t b_size,
                               int64_t c_size);
int64_t num_products(const BatchStrides& batch);
struct BatchOffsets {
  int64_t a = 0, b = 0, c = 0;
};
BatchOffsets offsets_of(const BatchStrides& batch, int64_t product);

/// Returns the scratch bytes of gemm_batched() for one call on at most `max_threads` threads; may be 0.
template <typename T>
size_t gemm_scratch_bytes(const GemmShape& shape, int max_threads);

/// Computes C_i = f(alpha A_i B_i + beta bias + residual) for every product i of the batch. Bias and residual are the same for all
/// products. @param scratch  gemm_scratch_bytes(shape, max_threads), aligned to 64 bytes.
template <typename T>
void gemm_batched(const GemmShape& shape, const BatchStrides& batch, const T* A, const T* B, T* C, const Epilogue<T>& epilogue,
                  void* scratch, int max_threads, ThreadPool* pool);

/// Like gemm_batched() above, with a packed B that all products share; batch.b is ignored.
template <typename T>
void gemm_batched(const GemmShape& shape, const BatchStrides& batch, const T* A, const PackedB<T>& B, T* C, const Epilogue<T>& epilogue,
                  ThreadPool* pool);

}  // namespace treadle::kernels
