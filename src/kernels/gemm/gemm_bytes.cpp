#include "kernels/gemm/gemm_bytes.h"

#include <algorithm>
#include <cstring>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/conv/byte_tile.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_bytes.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Computes y = (sums - row_sum * b_zeros) * scales. Integers wrap around as int32 does; b_zeros may be null.
void scale_row(const int32_t* sums, const int32_t* b_zeros, int32_t row_sum, const float* scales, int64_t n, float* y) {
  const hn::ScalableTag<int32_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  auto scaled = [&](auto ints, auto floats, int64_t i) {
    auto sum = hn::LoadU(ints, sums + i);
    if (b_zeros) sum = hn::Sub(sum, hn::Mul(hn::Set(ints, row_sum), hn::LoadU(ints, b_zeros + i)));
    hn::StoreU(hn::Mul(hn::ConvertTo(floats, sum), hn::LoadU(floats, scales + i)), floats, y + i);
  };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) scaled(d, df, i);
  for (; i < n; ++i) scaled(hn::CappedTag<int32_t, 1>(), hn::CappedTag<float, 1>(), i);
}

// Interleaves 16 columns of four rows, with the bits of `flip` inverted, and adds each column's signed bytes to `sums`.
void pack_quads(const uint8_t* const* rows, uint8_t flip, int8_t* dst, int32_t* sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t n = 0; n < 16; ++n)
    for (int64_t k = 0; k < 4; ++k) sums[n] += dst[4 * n + k] = static_cast<int8_t>(rows[k][n] ^ flip);
#else
  const hn::FixedTag<uint8_t, 16> d;
  const hn::RepartitionToWide<decltype(d)> d16;
  const hn::Repartition<int8_t, decltype(d)> bytes;
  const hn::RepartitionToWide<decltype(bytes)> words;
  const hn::RepartitionToWide<decltype(words)> ints;
  const auto flips = hn::Set(d, flip);
  const auto r0 = hn::Xor(hn::LoadU(d, rows[0]), flips), r1 = hn::Xor(hn::LoadU(d, rows[1]), flips),
             r2 = hn::Xor(hn::LoadU(d, rows[2]), flips), r3 = hn::Xor(hn::LoadU(d, rows[3]), flips);
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d, r0, r1)), high01 = hn::BitCast(d16, hn::InterleaveUpper(d, r0, r1)),
             low23 = hn::BitCast(d16, hn::InterleaveLower(d, r2, r3)), high23 = hn::BitCast(d16, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(bytes, hn::InterleaveLower(d16, low01, low23)), bytes, dst);
  hn::StoreU(hn::BitCast(bytes, hn::InterleaveUpper(d16, low01, low23)), bytes, dst + 16);
  hn::StoreU(hn::BitCast(bytes, hn::InterleaveLower(d16, high01, high23)), bytes, dst + 32);
  hn::StoreU(hn::BitCast(bytes, hn::InterleaveUpper(d16, high01, high23)), bytes, dst + 48);
  const auto lower = [&](auto row)
                         HWY_ATTR { return hn::PromoteTo(words, hn::LowerHalf(hn::Half<decltype(bytes)>(), hn::BitCast(bytes, row))); };
  const auto upper = [&](auto row)
                         HWY_ATTR { return hn::PromoteTo(words, hn::UpperHalf(hn::Half<decltype(bytes)>(), hn::BitCast(bytes, row))); };
  const auto add = [&](auto four, int32_t* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(ints, to), hn::PromoteTo(ints, hn::LowerHalf(hn::Half<decltype(words)>(), four))), ints, to);
    hn::StoreU(hn::Add(hn::LoadU(ints, to + 4), hn::PromoteTo(ints, hn::UpperHalf(hn::Half<decltype(words)>(), four))), ints, to + 4);
  };
  add(hn::Add(hn::Add(lower(r0), lower(r1)), hn::Add(lower(r2), lower(r3))), sums);
  add(hn::Add(hn::Add(upper(r0), upper(r1)), hn::Add(upper(r2), upper(r3))), sums + 8);
#endif
}

int32_t sum_row(const uint8_t* src, int64_t n) {
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d64);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sums = hn::Add(sums, hn::SumsOf8(hn::LoadU(d, src + i)));
  auto sum = static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(d64, sums)));
  for (; i < n; ++i) sum += src[i];
  return static_cast<int32_t>(sum);
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
HWY_EXPORT(pack_quads);
HWY_EXPORT(copy_row);
HWY_EXPORT(sum_row);

namespace {

constexpr int64_t kPanel = 64, kRows = 96;  // columns of a panel and rows of a chunk, which make a 24 KB block of sums

int64_t quads_of(int64_t K) { return (K + 3) / 4; }
int64_t panels_of(int64_t N) { return (N + kPanel - 1) / kPanel; }
int64_t rounded_columns(int64_t N) { return (N + 15) / 16 * 16; }

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

int64_t packed_bytes_b_size(int64_t K, int64_t N) { return quads_of(K) * 4 * rounded_columns(N); }

PackedBytesB pack_bytes_b(const void* B, bool is_signed, int64_t K, int64_t N, int64_t ldb, int8_t* data, int32_t* sums) {
  const auto* src = static_cast<const uint8_t*>(B);
  const uint8_t flip = is_signed ? 0 : 0x80;  // XOR with it turns an unsigned byte u into the signed byte u - 128
  const int64_t quads = quads_of(K);
  std::fill_n(sums, N, 0);
  uint8_t zeros[16], last[4][16];
  std::memset(zeros, flip, sizeof zeros);
  for (int64_t n = 0; n < N; n += 16) {
    const int64_t panel = n / kPanel * kPanel, width = std::min(kPanel, rounded_columns(N - panel)), columns = std::min<int64_t>(16, N - n);
    int8_t* dst = data + panel * 4 * quads + (n - panel) * 4;
    int32_t own[16] = {};
    for (int64_t quad = 0; quad < quads; ++quad, dst += 4 * width) {
      const uint8_t* rows[4];
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t k = 4 * quad + i;
        rows[i] = k < K ? src + k * ldb + n : zeros;
        if (columns == 16 || k >= K) continue;
        std::memset(last[i], flip, sizeof last[i]);
        rows[i] = static_cast<const uint8_t*>(std::memcpy(last[i], rows[i], static_cast<size_t>(columns)));
      }
      HWY_DYNAMIC_DISPATCH(pack_quads)(rows, flip, dst, own);
    }
    std::copy_n(own, columns, sums + n);
  }
  return {K, N, data, sums};
}

namespace {

/// The operands as a tile reads them: A as unsigned bytes, and what corrects for the zero points.
struct Prepared {
  const uint8_t* rows;
  int64_t lda;
  int32_t *row_sums, *offsets, *b_zeros;
  float* scales;
  bool has_b_zero;
};

Prepared prepare(int64_t M, const BytesProduct& p, const PackedBytesB& B, void* scratch, ThreadPool* pool) {
  const int64_t K = B.K, N = B.N, lda = 4 * quads_of(K), columns = rounded_columns(N);
  auto* room = static_cast<std::byte*>(scratch);
  auto* a = reinterpret_cast<uint8_t*>(room);
  Prepared prepared{};
  prepared.lda = lda;
  prepared.row_sums = reinterpret_cast<int32_t*>(room += aligned_bytes<uint8_t>(M * lda));
  prepared.offsets = reinterpret_cast<int32_t*>(room += aligned_bytes<int32_t>(M));
  prepared.b_zeros = reinterpret_cast<int32_t*>(room += aligned_bytes<int32_t>(columns));
  prepared.scales = reinterpret_cast<float*>(room += aligned_bytes<int32_t>(columns));
  const uint8_t flip = p.a_signed ? 0x80 : 0;
  // Zero points relative to A as unsigned bytes and B as signed bytes. Arithmetic wraps around as int32 does.
  const auto a_zero = static_cast<uint32_t>(p.a_zero + (p.a_signed ? 128 : 0));
  prepared.has_b_zero = !p.b_signed;
  if (p.b_zeros)
    for (int64_t n = 0; n < N; ++n) prepared.has_b_zero |= p.b_zeros[n] != 0;
  for (int64_t n = 0; n < N; ++n) {
    const auto b_zero = static_cast<uint32_t>((p.b_zeros ? p.b_zeros[n] : 0) - (p.b_signed ? 0 : 128));
    prepared.b_zeros[n] = static_cast<int32_t>(b_zero);
    prepared.offsets[n] = static_cast<int32_t>(static_cast<uint32_t>(K) * a_zero * b_zero - a_zero * static_cast<uint32_t>(B.sums[n]));
    prepared.scales[n] = p.scales[n];
  }
  for (int64_t n = N; n < columns; ++n) prepared.offsets[n] = 0, prepared.scales[n] = 0;
  // Unsigned A with K a multiple of four is read in place. Row sums are needed if B has zero points.
  const bool in_place = flip == 0 && K == lda;
  prepared.rows = in_place ? static_cast<const uint8_t*>(p.A) : a;
  const int64_t read = in_place && !prepared.has_b_zero ? 0 : M;
  const PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, read, std::max<int64_t>(1, 65'536 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const uint8_t* row = static_cast<const uint8_t*>(p.A) + m * K;
      if (in_place) {
        prepared.row_sums[m] = HWY_DYNAMIC_DISPATCH(sum_row)(row, K);
        continue;
      }
      prepared.row_sums[m] = HWY_DYNAMIC_DISPATCH(copy_row)(row, K, flip, a + m * lda);
      std::fill(a + m * lda + K, a + (m + 1) * lda, uint8_t{0});
    }
  });
  return prepared;
}

/// Calls tile(first row, last row, first column, the tile's operands) for all tiles, a panel after the other.
template <typename Fn>
void for_each_tile(int64_t M, const PackedBytesB& B, const Prepared& prepared, ThreadPool* pool, const Fn& fn) {
  const PhaseScope phase(KernelPhase::compute);
  const int64_t chunks = (M + kRows - 1) / kRows;
  const int64_t macs = std::max<int64_t>(1, B.K * std::min(M, kRows) * kPanel);
  parallel_for(pool, panels_of(B.N) * chunks, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t n0 = item / chunks * kPanel, columns = std::min(kPanel, B.N - n0);
      const int64_t first = M * (item % chunks) / chunks, last = M * (item % chunks + 1) / chunks;
      fn(first, ByteConvTile{.A = prepared.rows + first * prepared.lda,
                             .lda = prepared.lda,
                             .B = B.data + n0 * prepared.lda,
                             .quads = prepared.lda / 4,
                             .vectors = static_cast<int>((columns + 15) / 16),
                             .epilogue = {.offsets = prepared.offsets, .scales = prepared.scales, .zero = 0, .is_signed = false},
                             .y = nullptr,
                             .ldy = B.N,
                             .columns = columns,
                             .rows = last - first,
                             .column = n0});
    }
  });
}

}  // namespace

size_t gemm_bytes_scratch(int64_t M, int64_t K, int64_t N) {
  return aligned_bytes<uint8_t>(M * quads_of(K) * 4) + aligned_bytes<int32_t>(M) + 2 * aligned_bytes<int32_t>(rounded_columns(N)) +
         aligned_bytes<float>(rounded_columns(N));
}

void gemm_bytes(int64_t M, const BytesProduct& p, const PackedBytesB& B, float* y, void* scratch, ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const Prepared prepared = prepare(M, p, B, scratch, pool);
  const ByteInstructions with = byte_instructions();
  for_each_tile(M, B, prepared, pool, [&](int64_t first, ByteConvTile tile) {
    alignas(64) int32_t sums[kRows * kPanel];
    tile.sums = sums, tile.ldy = kPanel;
    byte_conv_tile(tile, with);
    const int32_t* b_zeros = prepared.has_b_zero ? prepared.b_zeros + tile.column : nullptr;
    for (int64_t r = 0; r < tile.rows; ++r) HWY_DYNAMIC_DISPATCH(scale_row)
    (sums + r * kPanel, b_zeros, b_zeros ? prepared.row_sums[first + r] : 0, prepared.scales + tile.column, tile.columns,
     y + (first + r) * B.N + tile.column);
  });
}

void gemm_bytes(int64_t M, const BytesProduct& p, const PackedBytesB& B, const BytesResult& result, uint8_t* y, void* scratch,
                ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const Prepared prepared = prepare(M, p, B, scratch, pool);
  if (prepared.has_b_zero) {  // there is one for all columns, so each row has one number to subtract
    const auto b_zero = static_cast<uint32_t>(prepared.b_zeros[0]);
    for (int64_t m = 0; m < M; ++m) prepared.row_sums[m] = static_cast<int32_t>(0 - static_cast<uint32_t>(prepared.row_sums[m]) * b_zero);
  }
  const ByteInstructions with = byte_instructions();
  for_each_tile(M, B, prepared, pool, [&](int64_t first, ByteConvTile tile) {
    ByteEpilogue& e = tile.epilogue;
    e.zero = result.zero, e.is_signed = result.is_signed, e.addends = result.addends;
    e.additions = result.additions, e.num_additions = result.num_additions;
    tile.row_offsets = prepared.has_b_zero ? prepared.row_sums + first : nullptr;
    const int64_t place = first * B.N + tile.column;
    tile.first = result.first + place, tile.y = y + place;
    byte_conv_tile(tile, with);
    if (result.table) map_byte_rows(tile.rows, tile.columns, B.N, result.table, tile.y);
  });
}

}  // namespace treadle::kernels
#endif
