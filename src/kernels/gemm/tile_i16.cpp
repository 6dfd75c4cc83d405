#include "kernels/gemm/tile_i16.h"

#include <cstring>

#include "kernels/gemm/gemm_int.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_i16.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<int32_t>;
using V = hn::Vec<D>;

// Highway does not define the order of ReorderWidenMulAccumulate; on x86, each lane sums its own pair.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

#if HWY_MAX_BYTES >= 64
constexpr int kMaxVectors = 4;
constexpr int max_rows(int vectors) { return vectors >= 3 ? 6 : 8; }
#else
constexpr int kMaxVectors = 3;
constexpr int max_rows(int vectors) { return vectors == 3 ? 3 : 6; }
#endif

template <int kRows, int kVectors, bool kOffsets>
HWY_NOINLINE void tile(const TileJobI16& job, int64_t row) {
  const D d;
  const hn::ScalableTag<int16_t> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  V unused = hn::Zero(d);
  const int16_t* HWY_RESTRICT a = job.A + row * 2 * job.pairs;
  for (int64_t k = 0; k < job.pairs; ++k, a += 2) {
    const int16_t* HWY_RESTRICT b = job.B + (kOffsets ? job.offsets[k] : k * 2 * kVectors * lanes);
    hn::Vec<decltype(d16)> bv[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bv[v] = hn::LoadU(d16, b + v * 2 * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * 2 * job.pairs, sizeof pair);
      const auto av = hn::BitCast(d16, hn::Set(d, pair));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::ReorderWidenMulAccumulate(d, av, bv[v], sum[r][v], unused);
    }
  }
  // This loop is unrolled too: if any loop indexed an accumulator by a variable, it would live in memory, even in the loop above.
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      int32_t* c = job.C + (row + r) * job.ldc + v * lanes;
      const int64_t left = job.columns - v * lanes;
      if (left >= lanes) {
        hn::StoreU(sum[r][v], d, c);
      } else {
        store_first(sum[r][v], d, FirstLanes(d, left), c);
      }
    }
  }
}

template <int kVectors, int kRows = max_rows(kVectors)>
HWY_INLINE void tile_of(int64_t rows, const TileJobI16& job, int64_t row) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kVectors, kRows - 1>(rows, job, row);
  }
  job.offsets ? tile<kRows, kVectors, true>(job, row) : tile<kRows, kVectors, false>(job, row);
}

template <int kVectors = kMaxVectors>
void rows_any(const TileJobI16& job) {
  if constexpr (kVectors > 1) {
    if (job.vectors < kVectors) return rows_any<kVectors - 1>(job);
  }
  const int64_t rows = job.row_end - job.row_begin, blocks = (rows + max_rows(kVectors) - 1) / max_rows(kVectors);
  int64_t row = job.row_begin;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = rows / blocks + (block < rows % blocks ? 1 : 0);
    tile_of<kVectors>(count, job, row);
    row += count;
  }
}

#else

void rows_any(const TileJobI16& job) {
  const int64_t width = job.vectors * static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t m = job.row_begin; m < job.row_end; ++m) {
    for (int64_t n = 0; n < job.columns; ++n) {
      uint32_t sum = 0;
      for (int64_t k = 0; k < 2 * job.pairs; ++k) {
        const int16_t* b = job.B + (job.offsets ? job.offsets[k / 2] : k / 2 * 2 * width);
        sum += static_cast<uint32_t>(int32_t{job.A[m * 2 * job.pairs + k]} * int32_t{b[2 * n + k % 2]});
      }
      job.C[m * job.ldc + n] = static_cast<int32_t>(sum);
    }
  }
}

#endif

template <class DTo>
HWY_INLINE void requantize_to(DTo, const int32_t* src, int64_t n, float scale, int32_t zero, hn::TFromD<DTo>* dst) {
  using T = hn::TFromD<DTo>;
  const D d;
  const hn::ScalableTag<float> df;
  const hn::Rebind<T, D> dt;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto low = hn::Set(d, int32_t{hwy::LimitsMin<T>()}), high = hn::Set(d, int32_t{hwy::LimitsMax<T>()});
  // Clamps the float first, so that the conversion stays in range; results beyond these bounds saturate anyway.
  const auto bound = hn::Set(df, 1e6f);
  for (int64_t i = 0; i < n; i += lanes) {
    HWY_ALIGN int32_t piece[hn::MaxLanes(d)] = {};
    const int64_t count = n - i < lanes ? n - i : lanes;
    if (count < lanes) __builtin_memcpy(piece, src + i, static_cast<size_t>(count) * sizeof(int32_t));
    const V in = count < lanes ? hn::Load(d, piece) : hn::LoadU(d, src + i);
    const auto scaled = hn::Min(bound, hn::Max(hn::Neg(bound), hn::Mul(hn::ConvertTo(df, in), hn::Set(df, scale))));
    const V out = hn::Min(high, hn::Max(low, hn::Add(hn::NearestInt(scaled), hn::Set(d, zero))));
    const auto bytes = hn::DemoteTo(dt, out);
    if (count < lanes) {
      HWY_ALIGN T last[hn::MaxLanes(d)];
      hn::Store(bytes, dt, last);
      __builtin_memcpy(dst + i, last, static_cast<size_t>(count));
    } else {
      hn::StoreU(bytes, dt, dst + i);
    }
  }
}

template <typename Byte>
HWY_INLINE void widen(const Byte* src, int32_t zero, int64_t n, int16_t* dst) {
  const hn::ScalableTag<int16_t> d;
  const hn::Rebind<Byte, decltype(d)> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto zeros = hn::Set(d, static_cast<int16_t>(zero));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Sub(hn::PromoteTo(d, hn::LoadU(bytes, src + i)), zeros), d, dst + i);
  for (; i < n; ++i) dst[i] = static_cast<int16_t>(src[i] - zero);
}

/// Interleaves `even` and `odd` in vectors of tag `d`; the last vector may overlap the previous one. Does nothing if n is less than a
/// vector. @return  number of elements done: 0 or n
template <class D16, typename Byte>
HWY_INLINE int64_t pair_vectors(D16 d, const Byte* even, const Byte* odd, int32_t zero, int64_t n, int16_t* dst) {
  const hn::Rebind<Byte, D16> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) return 0;
  const auto zeros = hn::Set(d, static_cast<int16_t>(zero));
  for (int64_t i = 0;; i = i + 2 * lanes <= n ? i + lanes : n - lanes) {
    const auto first = hn::Sub(hn::PromoteTo(d, hn::LoadU(bytes, even + i)), zeros);
    const auto second = odd ? hn::Sub(hn::PromoteTo(d, hn::LoadU(bytes, odd + i)), zeros) : hn::Zero(d);
    hn::StoreInterleaved2(first, second, d, dst + 2 * i);
    if (i + lanes == n) return n;
  }
}

template <typename Byte>
HWY_INLINE void pair(const Byte* even, const Byte* odd, int64_t step, int32_t zero, int64_t n, int16_t* dst) {
  int64_t done = 0;
  if (step == 1) {  // also tries shorter vectors, since rows of images are short
    done = pair_vectors(hn::ScalableTag<int16_t>(), even, odd, zero, n, dst);
    if (done == 0) done = pair_vectors(hn::CappedTag<int16_t, 8>(), even, odd, zero, n, dst);
    if (done == 0) done = pair_vectors(hn::CappedTag<int16_t, 4>(), even, odd, zero, n, dst);
  }
  for (int64_t i = done; i < n; ++i) {
    dst[2 * i] = static_cast<int16_t>(even[i * step] - zero);
    dst[2 * i + 1] = static_cast<int16_t>(odd ? odd[i * step] - zero : 0);
  }
}

}  // namespace

void widen_rows(const void* src, bool is_signed, int32_t zero, int64_t n, int16_t* dst) {
  is_signed ? widen(static_cast<const int8_t*>(src), zero, n, dst) : widen(static_cast<const uint8_t*>(src), zero, n, dst);
}

void pairs_of_rows(const BytePairs& pairs, int64_t n, int16_t* dst) {
  if (pairs.is_signed) {
    pair(static_cast<const int8_t*>(pairs.even), static_cast<const int8_t*>(pairs.odd), pairs.step, pairs.zero, n, dst);
  } else {
    pair(static_cast<const uint8_t*>(pairs.even), static_cast<const uint8_t*>(pairs.odd), pairs.step, pairs.zero, n, dst);
  }
}

void tile_rows_i16(const TileJobI16& job) {
  if (job.row_end > job.row_begin) rows_any(job);
}

void requantize_loop(const int32_t* src, int64_t n, float scale, int32_t zero, bool is_signed, void* dst) {
  if (is_signed) {
    requantize_to(hn::ScalableTag<int8_t>(), src, n, scale, zero, static_cast<int8_t*>(dst));
  } else {
    requantize_to(hn::ScalableTag<uint8_t>(), src, n, scale, zero, static_cast<uint8_t*>(dst));
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(tile_rows_i16);
HWY_EXPORT(requantize_loop);
HWY_EXPORT(widen_rows);
HWY_EXPORT(pairs_of_rows);

void gemm_tile_rows_i16(const TileJobI16& job) { HWY_DYNAMIC_DISPATCH(tile_rows_i16)(job); }
void widen_to_i16(const void* src, bool is_signed, int32_t zero, int64_t n, int16_t* dst) {
  HWY_DYNAMIC_DISPATCH(widen_rows)(src, is_signed, zero, n, dst);
}
void pairs_to_i16(const BytePairs& pairs, int64_t n, int16_t* dst) { HWY_DYNAMIC_DISPATCH(pairs_of_rows)(pairs, n, dst); }
void requantize(const int32_t* src, int64_t n, float scale, int32_t zero, bool is_signed, void* dst) {
  HWY_DYNAMIC_DISPATCH(requantize_loop)(src, n, scale, zero, is_signed, dst);
}

}  // namespace treadle::kernels
#endif
