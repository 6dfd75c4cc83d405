#include "kernels/movement/transpose_plane.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/movement/transpose_plane.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

// Bits are moved as integers, so that no NaN is touched.
using D = hn::CappedTag<int32_t, 8>;
using V = hn::Vec<D>;

// 8 x 8: pairs of rows, then pairs of pairs inside 128-bit halves, then the halves.
HWY_INLINE void transpose8(D d, V (&r)[8]) {
  const hn::Repartition<int64_t, D> d64;
  V t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = hn::InterleaveLower(d, r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = hn::InterleaveUpper(d, r[2 * i], r[2 * i + 1]);
  }
  V u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const auto a = hn::BitCast(d64, t[4 * i + j]), b = hn::BitCast(d64, t[4 * i + 2 + j]);
      u[4 * i + 2 * j] = hn::BitCast(d, hn::InterleaveLower(d64, a, b));
      u[4 * i + 2 * j + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, b));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = hn::ConcatLowerLower(d, u[4 + i], u[i]);
    r[4 + i] = hn::ConcatUpperUpper(d, u[4 + i], u[i]);
  }
}

HWY_INLINE void block(const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  const D d;
  V r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = hn::LoadU(d, src + i * src_stride);
  transpose8(d, r);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) hn::StoreU(r[i], d, dst + i * dst_stride);
}

HWY_INLINE void edge(int64_t rows, int64_t columns, const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  const D d;
  const FirstLanes in(d, columns), out(d, rows);
  V r[8];
  for (int i = 0; i < 8; ++i) r[i] = i < rows ? load_first(d, in, src + i * src_stride) : hn::Zero(d);
  transpose8(d, r);
  for (int i = 0; i < columns; ++i) store_first(r[i], d, out, dst + i * dst_stride);
}

void plane(int64_t rows, int64_t columns, const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  // Squares of one cache line: each line of either array is touched in one go, even where rows a power of two apart share cache sets.
  constexpr int64_t kLine = 16;
  for (int64_t c0 = 0; c0 < columns; c0 += kLine) {
    for (int64_t r0 = 0; r0 < rows; r0 += kLine) {
      for (int64_t c = c0; c < columns && c < c0 + kLine; c += 8) {
        for (int64_t r = r0; r < rows && r < r0 + kLine; r += 8) {
          const int32_t* from = src + r * src_stride + c;
          int32_t* to = dst + c * dst_stride + r;
          if (r + 8 <= rows && c + 8 <= columns) {
            block(from, src_stride, to, dst_stride);
          } else {
            edge(rows - r < 8 ? rows - r : 8, columns - c < 8 ? columns - c : 8, from, src_stride, to, dst_stride);
          }
        }
      }
    }
  }
}

#else

void plane(int64_t rows, int64_t columns, const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  constexpr int64_t kTile = 16;
  for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      for (int64_t c = c0; c < columns && c < c0 + kTile; ++c) {
        for (int64_t r = r0; r < rows && r < r0 + kTile; ++r) dst[c * dst_stride + r] = src[r * src_stride + c];
      }
    }
  }
}

#endif

}  // namespace

void transpose_words(int64_t rows, int64_t columns, const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  plane(rows, columns, src, src_stride, dst, dst_stride);
}

template <typename T>
HWY_INLINE void interleave(int64_t n, const T* src, int64_t src_stride, T* dst) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreInterleaved3(hn::LoadU(d, src + i), hn::LoadU(d, src + src_stride + i), hn::LoadU(d, src + 2 * src_stride + i), d,
                          dst + 3 * i);
  for (; i < n; ++i)
    for (int64_t c = 0; c < 3; ++c) dst[3 * i + c] = src[c * src_stride + i];
}
template <typename T>
HWY_INLINE void deinterleave(int64_t n, const T* src, T* dst, int64_t dst_stride) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::Vec<decltype(d)> v[3];
    hn::LoadInterleaved3(d, src + 3 * i, v[0], v[1], v[2]);
    for (int c = 0; c < 3; ++c) hn::StoreU(v[c], d, dst + c * dst_stride + i);
  }
  for (; i < n; ++i)
    for (int64_t c = 0; c < 3; ++c) dst[c * dst_stride + i] = src[3 * i + c];
}
void interleave_words(int64_t n, const uint32_t* src, int64_t src_stride, uint32_t* dst) { interleave(n, src, src_stride, dst); }
void interleave_bytes(int64_t n, const uint8_t* src, int64_t src_stride, uint8_t* dst) { interleave(n, src, src_stride, dst); }

void deinterleave_words(int64_t n, const uint32_t* src, uint32_t* dst, int64_t dst_stride) { deinterleave(n, src, dst, dst_stride); }
void deinterleave_bytes(int64_t n, const uint8_t* src, uint8_t* dst, int64_t dst_stride) { deinterleave(n, src, dst, dst_stride); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(transpose_words);
HWY_EXPORT(interleave_words);
HWY_EXPORT(interleave_bytes);
HWY_EXPORT(deinterleave_words);
HWY_EXPORT(deinterleave_bytes);

void transpose_plane(int64_t rows, int64_t columns, const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_words)
  (rows, columns, reinterpret_cast<const int32_t*>(src), src_stride, reinterpret_cast<int32_t*>(dst), dst_stride);
}

void interleave3(int64_t n, const uint32_t* src, int64_t src_stride, uint32_t* dst) {
  HWY_DYNAMIC_DISPATCH(interleave_words)(n, src, src_stride, dst);
}
void interleave3(int64_t n, const uint8_t* src, int64_t src_stride, uint8_t* dst) {
  HWY_DYNAMIC_DISPATCH(interleave_bytes)(n, src, src_stride, dst);
}

void deinterleave3(int64_t n, const uint32_t* src, uint32_t* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(deinterleave_words)(n, src, dst, dst_stride);
}
void deinterleave3(int64_t n, const uint8_t* src, uint8_t* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(deinterleave_bytes)(n, src, dst, dst_stride);
}

}  // namespace treadle::kernels
#endif
