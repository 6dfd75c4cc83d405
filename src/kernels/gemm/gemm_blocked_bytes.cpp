#include "kernels/gemm/gemm_blocked_bytes.h"

#include <algorithm>
#include <cmath>

#include "core/kernel_phases.h"
#include "kernels/gemm/gemm_bytes.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kLongestBlock = 256;

int64_t words_of(const BlockedShape& s) { return (s.K + s.codes_per_word() - 1) / s.codes_per_word(); }
// Bytes of a row: four for each half of a word of nibbles, or for each word of bytes.
int64_t depth_of(const BlockedShape& s) { return words_of(s) * s.codes_per_word(); }
size_t code_bytes(int64_t M, const BlockedShape& s) { return static_cast<size_t>((M * depth_of(s) + 63) / 64 * 64); }

// Where place `k` of a row is in its steps.
int64_t place_of(int64_t k, int bits) { return bits == 4 ? k / 8 * 8 + k % 2 * 4 + k % 8 / 2 : k; }

// The nearest whole number, ties to even, of one below 2^22: the sum has no room for a fraction. std::nearbyint is a call.
float whole(float x) { return (x + 12582912.0F) - 12582912.0F; }

void round_row(const float* row, const BlockedShape& s, int8_t* codes, float* scales, int32_t* sums) {
  std::fill_n(codes, depth_of(s), int8_t{0});
  for (int64_t b = 0; b < s.blocks(); ++b) {
    const int64_t first = b * s.block_size, end = std::min(s.K, first + s.block_size);
    float largest = 0;
    bool is_number = true;
    for (int64_t k = first; k < end; ++k) {
      largest = std::max(largest, std::fabs(row[k]));
      is_number = is_number && std::isfinite(row[k]);
    }
    int32_t sum = 0;
    if (!is_number) {  // the whole block is none
      scales[b] = std::nanf("");
    } else {
      scales[b] = largest / 127;
      const float steps = largest > 0 ? 127 / largest : 0;
      for (int64_t k = first; k < end; ++k) {
        const float step = std::min(127.0F, std::max(-127.0F, whole(row[k] * steps)));
        const auto code = static_cast<int8_t>(std::isfinite(step) ? step : 0);
        codes[place_of(k, s.bits)] = code;
        sum += code;
      }
    }
    sums[b] = sum;
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
  // As gemm_blocked: many rows pass one panel in parts.
  constexpr int64_t kRowsPerPart = 48, kMacsPerChunk = 400'000;
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
