#include "kernels/movement/transpose_plane.h"

#include <algorithm>

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

// Moves elements as integers, which preserves the bits of NaN.
using D = hn::CappedTag<int32_t, 8>;
using V = hn::Vec<D>;

// Transposes 8 x 8 elements: interleaves pairs of rows, then pairs of results within 128-bit halves, then swaps halves.
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
  // Works on squares with sides of one cache line, so that all elements of a line are used at once. This helps if rows are a power of two
  // apart and share cache sets.
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

template <int kPlanes, typename T>
void interleave_planes(int64_t n, const T* src, int64_t src_stride, T* dst) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto plane = [&](int64_t i, int c) { return hn::LoadU(d, src + c * src_stride + i); };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    T* to = dst + kPlanes * i;
    if constexpr (kPlanes == 2) hn::StoreInterleaved2(plane(i, 0), plane(i, 1), d, to);
    if constexpr (kPlanes == 3) hn::StoreInterleaved3(plane(i, 0), plane(i, 1), plane(i, 2), d, to);
    if constexpr (kPlanes == 4) hn::StoreInterleaved4(plane(i, 0), plane(i, 1), plane(i, 2), plane(i, 3), d, to);
  }
  for (; i < n; ++i)
    for (int64_t c = 0; c < kPlanes; ++c) dst[kPlanes * i + c] = src[c * src_stride + i];
}
template <int kPlanes, typename T>
void deinterleave_planes(int64_t n, const T* src, T* dst, int64_t dst_stride) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::Vec<decltype(d)> v[kPlanes];
    const T* from = src + kPlanes * i;
    if constexpr (kPlanes == 2) hn::LoadInterleaved2(d, from, v[0], v[1]);
    if constexpr (kPlanes == 3) hn::LoadInterleaved3(d, from, v[0], v[1], v[2]);
    if constexpr (kPlanes == 4) hn::LoadInterleaved4(d, from, v[0], v[1], v[2], v[3]);
    for (int c = 0; c < kPlanes; ++c) hn::StoreU(v[c], d, dst + c * dst_stride + i);
  }
  for (; i < n; ++i)
    for (int64_t c = 0; c < kPlanes; ++c) dst[c * dst_stride + i] = src[kPlanes * i + c];
}
template <typename T>
void interleave_of(int planes, int64_t n, const T* src, int64_t src_stride, T* dst) {
  if (planes == 2) return interleave_planes<2>(n, src, src_stride, dst);
  planes == 3 ? interleave_planes<3>(n, src, src_stride, dst) : interleave_planes<4>(n, src, src_stride, dst);
}

// Interleaves nine planes as 3 x 3: first planes b, b + 3 and b + 6 for each b, then the three results.
void interleave_nine(int64_t n, const int32_t* src, int64_t src_stride, int32_t* dst) {
  const hn::ScalableTag<int32_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN int32_t thirds[3][3 * hn::MaxLanes(d)];
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int b = 0; b < 3; ++b) {
      const int32_t* from = src + b * src_stride + i;
      hn::StoreInterleaved3(hn::LoadU(d, from), hn::LoadU(d, from + 3 * src_stride), hn::LoadU(d, from + 6 * src_stride), d, thirds[b]);
    }
    for (int k = 0; k < 3; ++k)
      hn::StoreInterleaved3(hn::Load(d, thirds[0] + k * lanes), hn::Load(d, thirds[1] + k * lanes), hn::Load(d, thirds[2] + k * lanes), d,
                            dst + 9 * i + 3 * k * lanes);
  }
  plane(9, n - i, src + i, src_stride, dst + 9 * i, 9);
}

// Few rows (such as the taps of a window) that become dense columns are interleaved, as 8 x 8 squares would be mostly padding.
void transpose_words(int64_t rows, int64_t columns, const int32_t* src, int64_t src_stride, int32_t* dst, int64_t dst_stride) {
  if (dst_stride == rows) {
    if (rows == 1) return std::copy_n(src, columns, dst), void();
    if (rows == 2) return interleave_planes<2>(columns, src, src_stride, dst);
    if (rows == 3) return interleave_planes<3>(columns, src, src_stride, dst);
    if (rows == 4) return interleave_planes<4>(columns, src, src_stride, dst);
    if (rows == 9) return interleave_nine(columns, src, src_stride, dst);
  }
  plane(rows, columns, src, src_stride, dst, dst_stride);
}

template <typename T>
void deinterleave_of(int planes, int64_t n, const T* src, T* dst, int64_t dst_stride) {
  if (planes == 2) return deinterleave_planes<2>(n, src, dst, dst_stride);
  planes == 3 ? deinterleave_planes<3>(n, src, dst, dst_stride) : deinterleave_planes<4>(n, src, dst, dst_stride);
}
#define TREADLE_INTERLEAVE(T)                                                                                                              \
  void interleave_##T(int planes, int64_t n, const T* src, int64_t src_stride, T* dst) { interleave_of(planes, n, src, src_stride, dst); } \
  void deinterleave_##T(int planes, int64_t n, const T* src, T* dst, int64_t dst_stride) {                                                 \
    deinterleave_of(planes, n, src, dst, dst_stride);                                                                                      \
  }
TREADLE_INTERLEAVE(uint8_t)
TREADLE_INTERLEAVE(uint16_t)
TREADLE_INTERLEAVE(uint32_t)
#undef TREADLE_INTERLEAVE

#if HWY_TARGET == HWY_SCALAR

void transpose_halfwords(int64_t rows, int64_t columns, const uint16_t* src, int64_t src_stride, uint16_t* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) dst[c * dst_stride + r] = src[r * src_stride + c];
}

#else

// Transposes squares of 8 x 8 elements; the last squares may overlap earlier ones.
void transpose_halfwords(int64_t rows, int64_t columns, const uint16_t* src, int64_t src_stride, uint16_t* dst, int64_t dst_stride) {
  const hn::CappedTag<uint16_t, 8> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  auto square = [&](const uint16_t* from, uint16_t* to) {
    hn::Vec<decltype(d)> pairs[8];  // rows 2 i and 2 i + 1: columns 0 to 3, then 4 to 7
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto a = hn::LoadU(d, from + 2 * i * src_stride), b = hn::LoadU(d, from + (2 * i + 1) * src_stride);
      pairs[i] = hn::InterleaveLower(d, a, b);
      pairs[4 + i] = hn::InterleaveUpper(d, a, b);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      auto fours = [&](int i, bool upper) {
        const auto a = hn::BitCast(d32, pairs[4 * half + i]), b = hn::BitCast(d32, pairs[4 * half + i + 1]);
        return hn::BitCast(d64, upper ? hn::InterleaveUpper(d32, a, b) : hn::InterleaveLower(d32, a, b));
      };
#pragma GCC unroll 2
      for (int upper = 0; upper < 2; ++upper) {
        const auto first = fours(0, upper != 0), second = fours(2, upper != 0);
        uint16_t* column = to + (4 * half + 2 * upper) * dst_stride;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, first, second)), d, column);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, first, second)), d, column + dst_stride);
      }
    }
  };
  constexpr int64_t kLine = 32;
  for (int64_t c0 = 0; c0 < columns; c0 += kLine)
    for (int64_t r0 = 0; r0 < rows; r0 += kLine)
      for (int64_t c1 = c0; c1 < columns && c1 < c0 + kLine; c1 += 8)
        for (int64_t r1 = r0; r1 < rows && r1 < r0 + kLine; r1 += 8) {
          const int64_t r = r1 + 8 <= rows ? r1 : rows - 8, c = c1 + 8 <= columns ? c1 : columns - 8;
          square(src + r * src_stride + c, dst + c * dst_stride + r);
        }
}

#endif

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(transpose_words);
HWY_EXPORT(transpose_halfwords);

void transpose_plane(int64_t rows, int64_t columns, const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_words)
  (rows, columns, reinterpret_cast<const int32_t*>(src), src_stride, reinterpret_cast<int32_t*>(dst), dst_stride);
}

void transpose_plane(int64_t rows, int64_t columns, const uint16_t* src, int64_t src_stride, uint16_t* dst, int64_t dst_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_halfwords)(rows, columns, src, src_stride, dst, dst_stride);
}

#define TREADLE_INTERLEAVE(T)                                                          \
  HWY_EXPORT(interleave_##T);                                                          \
  HWY_EXPORT(deinterleave_##T);                                                        \
  void interleave(int planes, int64_t n, const T* src, int64_t src_stride, T* dst) {   \
    HWY_DYNAMIC_DISPATCH(interleave_##T)(planes, n, src, src_stride, dst);             \
  }                                                                                    \
  void deinterleave(int planes, int64_t n, const T* src, T* dst, int64_t dst_stride) { \
    HWY_DYNAMIC_DISPATCH(deinterleave_##T)(planes, n, src, dst, dst_stride);           \
  }
TREADLE_INTERLEAVE(uint8_t)
TREADLE_INTERLEAVE(uint16_t)
TREADLE_INTERLEAVE(uint32_t)
#undef TREADLE_INTERLEAVE

}  // namespace treadle::kernels
#endif
