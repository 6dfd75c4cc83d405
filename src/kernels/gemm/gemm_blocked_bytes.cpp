#include "kernels/gemm/gemm_blocked_bytes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kLongestBlock = 256;

int64_t words_of(const BlockedShape& s) { return (s.K + s.codes_per_word() - 1) / s.codes_per_word(); }
// Returns the number of bytes of a rounded row of A: one per code, rounded up to whole words of B's codes.
int64_t depth_of(const BlockedShape& s) { return words_of(s) * s.codes_per_word(); }
size_t code_bytes(int64_t M, const BlockedShape& s) { return static_cast<size_t>((M * depth_of(s) + 63) / 64 * 64); }

// Reorders eight bytes for words of 4-bit codes: first the bytes at even positions, then those at odd positions.
uint64_t even_first(uint64_t codes) {
  const auto gathered = [](uint64_t x) {
    x &= 0x00FF00FF00FF00FF;
    x = (x | x >> 8) & 0x0000FFFF0000FFFF;
    return (x | x >> 16) & 0xFFFFFFFF;
  };
  return gathered(codes) | gathered(codes >> 8) << 32;
}

// Rounds one block to 8-bit codes. Its loops are simple, so that compilers vectorize them.
void round_block(const float* row, int64_t n, int8_t* codes, float* scale, int32_t* sum) {
  // kLeast: bits of the smallest maximum magnitude (1.5e-36) for which 127 / magnitude is finite.
  constexpr uint32_t kInfinity = 0x7F800000, kLeast = 0x04000000;
  uint32_t largest_bits = 0;  // magnitude bits are ordered like the magnitudes; NaN is the largest
  for (int64_t k = 0; k < n; ++k) largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(row[k]) & 0x7FFFFFFF);
  *sum = 0;
  std::fill_n(codes, n, int8_t{0});
  // One infinity or NaN makes the whole block NaN.
  *scale = largest_bits < kInfinity ? std::bit_cast<float>(largest_bits) / 127 : std::nanf("");
  if (largest_bits < kLeast || largest_bits >= kInfinity) return;
  const float steps = 127 / std::bit_cast<float>(largest_bits);
  // Adding 1.5 * 2^23 rounds to an integer, ties to even; the lowest byte of the bits is the code.
  for (int64_t k = 0; k < n; ++k) codes[k] = static_cast<int8_t>(std::bit_cast<uint32_t>(row[k] * steps + 12582912.0F));
  for (int64_t k = 0; k < n; ++k) *sum += codes[k];
}

void round_row(const float* row, const BlockedShape& s, int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t b = 0; b < s.blocks(); ++b) {
    const int64_t first = b * s.block_size;
    round_block(row + first, std::min(s.K - first, s.block_size), codes + first, scales + b, sums + b);
  }
  std::fill(codes + s.K, codes + depth_of(s), int8_t{0});
  if (s.bits != 4) return;
  for (int64_t k = 0; k < depth_of(s); k += 8) {
    uint64_t eight;
    std::memcpy(&eight, codes + k, sizeof eight);
    eight = even_first(eight);
    std::memcpy(codes + k, &eight, sizeof eight);
  }
}

}  // namespace

bool takes_blocked_bytes(const BlockedShape& shape) { return has_fast_byte_products() && shape.block_size <= kLongestBlock; }

size_t gemm_blocked_bytes_scratch(int64_t M, const BlockedShape& s) {
  return code_bytes(M, s) + static_cast<size_t>(M * s.blocks()) * (sizeof(float) + sizeof(int32_t));
}

void gemm_blocked_bytes(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool) {
  const BlockedShape& s = B.shape;
  if (M == 0 || s.N == 0) return;
  if (s.K == 0) return std::fill_n(C, M * s.N, 0.0F), void();
  const int64_t depth = depth_of(s), blocks = s.blocks();
  auto* codes = static_cast<int8_t*>(scratch);
  auto* scales = reinterpret_cast<float*>(codes + code_bytes(M, s));
  auto* sums = reinterpret_cast<int32_t*>(scales + M * blocks);
  constexpr int64_t kElementsPerChunk = 16'384;
  PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, M, std::max<int64_t>(1, kElementsPerChunk / s.K), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) round_row(A + m * s.K, s, codes + m * depth, scales + m * blocks, sums + m * blocks);
  });
  phase.next(KernelPhase::compute);
  // Processes the rows in parts, as in gemm_blocked().
  constexpr int64_t kRowsPerPart = 48, kMacsPerChunk = 60'000;
  const auto tile = has_byte_instructions(ByteInstructions::avx512_vnni) ? blocked_bytes_tile_avx512vnni : blocked_bytes_tile_avx2;
  const int64_t panels = s.padded_columns() / 64, parts = (M + kRowsPerPart - 1) / kRowsPerPart;
  const int64_t macs = std::max<int64_t>(1, s.K * 64 * std::min(M, kRowsPerPart));
  parallel_for(pool, panels * parts, std::max<int64_t>(1, kMacsPerChunk / macs), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % parts * kRowsPerPart;
      tile({codes + row * depth, scales + row * blocks, sums + row * blocks, depth}, std::min(kRowsPerPart, M - row), B, i / parts,
           C + row * s.N);
    }
  });
}

}  // namespace treadle::kernels
