#include "kernels/gemm/gemm_bytes.h"

#include <algorithm>
#include <cstring>

#include "core/cpu_info.h"
#include "kernels/gemm/tile_vnni.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_bytes.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

// The compiler has vectors for these loops on every instruction set.

// y = (sums + offsets - row_sum * b_zeros) * scales
void scale_row(const int32_t* sums, const int32_t* offsets, const int32_t* b_zeros, int32_t row_sum, const float* scales, int64_t n,
               float* y) {
  if (b_zeros) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sums[i]) + static_cast<uint32_t>(offsets[i]) -
                                                     static_cast<uint32_t>(row_sum) * static_cast<uint32_t>(b_zeros[i]))) *
             scales[i];
  } else {
    for (int64_t i = 0; i < n; ++i)
      y[i] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sums[i]) + static_cast<uint32_t>(offsets[i]))) * scales[i];
  }
}

// A row of A as unsigned bytes; returns their sum.
int32_t copy_row(const uint8_t* src, int64_t n, uint8_t flip, uint8_t* dst) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    dst[i] = src[i] ^ flip;
    sum += dst[i];
  }
  return static_cast<int32_t>(sum);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(scale_row);
HWY_EXPORT(copy_row);

namespace {

constexpr int64_t kPanel = 64, kRows = 96;  // a tile of 24 KB

int64_t quads_of(int64_t K) { return (K + 3) / 4; }
int64_t panels_of(int64_t N) { return (N + kPanel - 1) / kPanel; }

}  // namespace

bool has_fast_byte_products() { return cpu_info().features.avx512_vnni && cpu_info().features.avx512; }

void byte_tile_plain(const ByteTile& tile) {
  std::fill_n(tile.C, tile.rows * kPanel, 0);
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t k = 0; k < 4 * tile.quads; ++k) {
      const int32_t a = tile.A[r * tile.lda + k];
      const int8_t* b = tile.B + k / 4 * 4 * kPanel + k % 4;
      for (int64_t n = 0; n < kPanel; ++n) tile.C[r * kPanel + n] += a * b[4 * n];
    }
}

int64_t packed_bytes_b_size(int64_t K, int64_t N) { return quads_of(K) * 4 * panels_of(N) * kPanel; }

PackedBytesB pack_bytes_b(const void* B, bool is_signed, int64_t K, int64_t N, int64_t ldb, int8_t* data, int32_t* sums) {
  const auto* src = static_cast<const uint8_t*>(B);
  const uint8_t flip = is_signed ? 0 : 0x80;  // u - 128 as a signed byte
  const int64_t quads = quads_of(K);
  std::fill_n(sums, N, 0);
  for (int64_t p = 0; p < panels_of(N); ++p) {
    const int64_t n0 = p * kPanel, columns = std::min(kPanel, N - n0);
    int8_t* panel = data + p * quads * 4 * kPanel;
    if (columns < kPanel || K % 4 != 0) std::memset(panel, 0, static_cast<size_t>(quads * 4 * kPanel));
    for (int64_t k = 0; k < K; ++k) {
      int8_t* dst = panel + k / 4 * 4 * kPanel + k % 4;
      const uint8_t* row = src + k * ldb + n0;
      for (int64_t n = 0; n < columns; ++n) {
        const auto value = static_cast<int8_t>(row[n] ^ flip);
        dst[4 * n] = value;
        sums[n0 + n] += value;
      }
    }
  }
  return {K, N, data, sums};
}

size_t gemm_bytes_scratch(int64_t M, int64_t K, int64_t N) {
  return aligned_bytes<uint8_t>(M * quads_of(K) * 4) + aligned_bytes<int32_t>(M) + 2 * aligned_bytes<int32_t>(N);
}

void gemm_bytes(int64_t M, const BytesProduct& p, const PackedBytesB& B, float* y, void* scratch, ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const int64_t K = B.K, N = B.N, quads = quads_of(K), lda = 4 * quads;
  auto* room = static_cast<std::byte*>(scratch);
  auto* a = reinterpret_cast<uint8_t*>(room);
  auto* row_sums = reinterpret_cast<int32_t*>(room += aligned_bytes<uint8_t>(M * lda));
  auto* offsets = reinterpret_cast<int32_t*>(room += aligned_bytes<int32_t>(M));
  auto* zeros = reinterpret_cast<int32_t*>(room += aligned_bytes<int32_t>(N));
  const uint8_t flip = p.a_signed ? 0x80 : 0;
  // In unsigned bytes of A and signed ones of B. Everything wraps as int32 does.
  const auto a_zero = static_cast<uint32_t>(p.a_zero + (p.a_signed ? 128 : 0));
  bool has_b_zero = !p.b_signed;
  if (p.b_zeros)
    for (int64_t n = 0; n < N; ++n) has_b_zero |= p.b_zeros[n] != 0;
  for (int64_t n = 0; n < N; ++n) {
    const auto b_zero = static_cast<uint32_t>((p.b_zeros ? p.b_zeros[n] : 0) - (p.b_signed ? 0 : 128));
    zeros[n] = static_cast<int32_t>(b_zero);
    offsets[n] = static_cast<int32_t>(static_cast<uint32_t>(K) * a_zero * b_zero - a_zero * static_cast<uint32_t>(B.sums[n]));
  }
  parallel_for(pool, M, std::max<int64_t>(1, 65'536 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      row_sums[m] = HWY_DYNAMIC_DISPATCH(copy_row)(static_cast<const uint8_t*>(p.A) + m * K, K, flip, a + m * lda);
      std::fill(a + m * lda + K, a + (m + 1) * lda, uint8_t{0});
    }
  });
  const bool fast = has_fast_byte_products();
  const int64_t chunks = (M + kRows - 1) / kRows;
  const int64_t macs = std::max<int64_t>(1, K * std::min(M, kRows) * kPanel);
  parallel_for(pool, panels_of(N) * chunks, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
    alignas(64) int32_t sums[kRows * kPanel];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item / chunks, n0 = panel * kPanel, columns = std::min(kPanel, N - n0);
      const int64_t first = M * (item % chunks) / chunks, last = M * (item % chunks + 1) / chunks;
      const ByteTile tile{a + first * lda, lda, B.data + panel * quads * 4 * kPanel, quads, sums, last - first};
      fast ? byte_tile_avx512vnni(tile) : byte_tile_plain(tile);
      for (int64_t m = first; m < last; ++m) HWY_DYNAMIC_DISPATCH(scale_row)
      (sums + (m - first) * kPanel, offsets + n0, has_b_zero ? zeros + n0 : nullptr, row_sums[m], p.scales + n0, columns, y + m * N + n0);
    }
  });
}

}  // namespace treadle::kernels
#endif
