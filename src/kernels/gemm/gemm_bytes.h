// Products of 8-bit matrices: y = (A - a_zero) (B - b_zero) * scale in float32, or quantized again to bytes. They use the integer dot
// products of AVX512-VNNI or AVX-VNNI, four elements of K at a time, 16-bit products on AVX2, and plain loops elsewhere. Sums are exact in
// 32 bits, so every machine gives the same result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

/// The instruction sets for byte products, slowest first.
enum class ByteInstructions : uint8_t { plain, avx2, avx_vnni, avx512_vnni };
/// Returns true if this process may use the instruction set. The sets are not nested: a CPU with AVX512-VNNI may lack AVX-VNNI.
bool has_byte_instructions(ByteInstructions which);
/// Returns the fastest instruction set that this process may use.
ByteInstructions byte_instructions();

struct ByteAddition;  // kernels/conv/byte_tile.h

/// Returns true if byte products are faster than float products on this machine.
inline bool has_fast_byte_products() { return byte_instructions() != ByteInstructions::plain; }

/// The packed B: panels of 64 columns (the last one of a multiple of 16) with groups of four rows interleaved, as signed bytes (unsigned
/// ones less 128), and its column sums.
struct PackedBytesB {
  int64_t K = 0, N = 0;
  const int8_t* data = nullptr;
  const int32_t* sums = nullptr;  ///< sums of the N columns
};
int64_t packed_bytes_b_size(int64_t K, int64_t N);
/// Packs B.
/// @param B  K x N bytes with row stride ldb
/// @param data, sums  packed_bytes_b_size(K, N) and N elements
PackedBytesB pack_bytes_b(const void* B, bool is_signed, int64_t K, int64_t N, int64_t ldb, int8_t* data, int32_t* sums);

struct BytesProduct {
  const void* A = nullptr;  ///< M rows of K bytes
  bool a_signed = false, b_signed = false;
  int32_t a_zero = 0;
  const int32_t* b_zeros = nullptr;  ///< N elements, or null: all are 0
  const float* scales = nullptr;     ///< an array of N elements
};

/// How a product becomes bytes: y = table[additions(saturate(round(product + addend) + zero))]. The product's scales are in units of the
/// result's scale. All B's zero points are equal.
struct BytesResult {
  int32_t zero = 0;
  bool is_signed = false;
  const float* addends = nullptr;  ///< N values, rounded up to 16; null: none
  const ByteAddition* additions = nullptr;
  int num_additions = 0;
  const uint8_t* table = nullptr;  ///< 256 bytes; null: none
  int64_t first = 0;               ///< place of y among all results, where a residual is read
};

/// Returns the scratch bytes of gemm_bytes().
size_t gemm_bytes_scratch(int64_t M, int64_t K, int64_t N);
/// Computes y (M x N), by the formula at the top of this file.
void gemm_bytes(int64_t M, const BytesProduct& product, const PackedBytesB& B, float* y, void* scratch, ThreadPool* pool);
void gemm_bytes(int64_t M, const BytesProduct& product, const PackedBytesB& B, const BytesResult& result, uint8_t* y, void* scratch,
                ThreadPool* pool);

}  // namespace treadle::kernels
