#include "kernels/gemm/gemm_bytes.h"

#include <algorithm>
#include <cstring>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile_amx.h"
#include "kernels/gemm/tile_vnni.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_bytes.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Computes y = (sums + offsets - row_sum * b_zeros) * scales. Integers wrap around as int32 does; b_zeros may be null.
void scale_row(const int32_t* sums, const int32_t* offsets, const int32_t* b_zeros, int32_t row_sum, const float* scales, int64_t n,
               float* y) {
  const hn::ScalableTag<int32_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  auto scaled = [&](auto ints, auto floats, int64_t i) {
    auto sum = hn::Add(hn::LoadU(ints, sums + i), hn::LoadU(ints, offsets + i));
    if (b_zeros) sum = hn::Sub(sum, hn::Mul(hn::Set(ints, row_sum), hn::LoadU(ints, b_zeros + i)));
    hn::StoreU(hn::Mul(hn::ConvertTo(floats, sum), hn::LoadU(floats, scales + i)), floats, y + i);
  };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) scaled(d, df, i);
  for (; i < n; ++i) scaled(hn::CappedTag<int32_t, 1>(), hn::CappedTag<float, 1>(), i);
}

// Copies src to dst with the bits of `flip` inverted, which turns signed bytes into unsigned ones. Returns the sum of dst.
int32_t copy_row(const uint8_t* src, int64_t n, uint8_t flip, uint8_t* dst) {
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto flips = hn::Set(d, flip);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d64);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bytes = hn::Xor(hn::LoadU(d, src + i), flips);
    sums = hn::Add(sums, hn::SumsOf8(bytes));
    hn::StoreU(bytes, d, dst + i);
  }
  auto sum = static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(d64, sums)));
  for (; i < n; ++i) sum += dst[i] = src[i] ^ flip;
  return static_cast<int32_t>(sum);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(scale_row);
HWY_EXPORT(copy_row);

namespace {

constexpr int64_t kPanel = 64, kRows = 96;  // columns of a panel and rows of a chunk, which make a 24 KB block of sums

int64_t quads_of(int64_t K) { return (K + 3) / 4; }
int64_t panels_of(int64_t N) { return (N + kPanel - 1) / kPanel; }

}  // namespace

bool has_byte_instructions(ByteInstructions which) {
  const CpuFeatures& features = cpu_info().features;
  switch (which) {
    case ByteInstructions::avx512_vnni: return features.avx512 && features.avx512_vnni;
    case ByteInstructions::avx_vnni: return features.avx2 && features.avx_vnni;
    case ByteInstructions::avx2: return features.avx2;
    case ByteInstructions::plain: return true;
  }
  return false;
}

ByteInstructions byte_instructions() {
  for (ByteInstructions with : {ByteInstructions::avx512_vnni, ByteInstructions::avx_vnni, ByteInstructions::avx2})
    if (has_byte_instructions(with)) return with;
  return ByteInstructions::plain;
}

void byte_tile(const ByteTile& tile, ByteInstructions with) {
  switch (with) {
    case ByteInstructions::avx512_vnni: return byte_tile_avx512vnni(tile);
    case ByteInstructions::avx_vnni: return byte_tile_avx2(tile, /*vnni=*/true);
    case ByteInstructions::avx2: return byte_tile_avx2(tile, /*vnni=*/false);
    case ByteInstructions::plain: return byte_tile_plain(tile);
  }
}

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
  const uint8_t flip = is_signed ? 0 : 0x80;  // XOR with it turns an unsigned byte u into the signed byte u - 128
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
  // Zero points relative to A as unsigned bytes and B as signed bytes. Arithmetic wraps around as int32 does.
  const auto a_zero = static_cast<uint32_t>(p.a_zero + (p.a_signed ? 128 : 0));
  bool has_b_zero = !p.b_signed;
  if (p.b_zeros)
    for (int64_t n = 0; n < N; ++n) has_b_zero |= p.b_zeros[n] != 0;
  for (int64_t n = 0; n < N; ++n) {
    const auto b_zero = static_cast<uint32_t>((p.b_zeros ? p.b_zeros[n] : 0) - (p.b_signed ? 0 : 128));
    zeros[n] = static_cast<int32_t>(b_zero);
    offsets[n] = static_cast<int32_t>(static_cast<uint32_t>(K) * a_zero * b_zero - a_zero * static_cast<uint32_t>(B.sums[n]));
  }
  // Unsigned A with K a multiple of four is read in place if no row sums are needed, that is, if B has no zero points.
  const bool in_place = flip == 0 && K == lda && !has_b_zero;
  const uint8_t* rows = in_place ? static_cast<const uint8_t*>(p.A) : a;
  const int64_t copied = in_place ? 0 : M;
  PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, copied, std::max<int64_t>(1, 65'536 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      row_sums[m] = HWY_DYNAMIC_DISPATCH(copy_row)(static_cast<const uint8_t*>(p.A) + m * K, K, flip, a + m * lda);
      std::fill(a + m * lda + K, a + (m + 1) * lda, uint8_t{0});
    }
  });
  phase.next(KernelPhase::compute);
  const ByteInstructions with = byte_instructions();
  const int64_t chunks = (M + kRows - 1) / kRows;
  const int64_t macs = std::max<int64_t>(1, K * std::min(M, kRows) * kPanel);
  parallel_for(pool, panels_of(N) * chunks, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
    alignas(64) int32_t sums[kRows * kPanel];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item / chunks, n0 = panel * kPanel, columns = std::min(kPanel, N - n0);
      const int64_t first = M * (item % chunks) / chunks, last = M * (item % chunks + 1) / chunks;
      const ByteTile tile{rows + first * lda, lda, B.data + panel * quads * 4 * kPanel, quads, sums, last - first};
      if (uses_amx_bytes(tile.rows, quads)) {
        amx_byte_sums(tile.A, lda, tile.B, quads, kPanel / 16, tile.rows, sums);
      } else {
        byte_tile(tile, with);
      }
      for (int64_t m = first; m < last; ++m) HWY_DYNAMIC_DISPATCH(scale_row)
      (sums + (m - first) * kPanel, offsets + n0, has_b_zero ? zeros + n0 : nullptr, has_b_zero ? row_sums[m] : 0, p.scales + n0, columns,
       y + m * N + n0);
    }
  });
}

}  // namespace treadle::kernels
#endif
