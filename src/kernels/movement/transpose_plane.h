// Transposition of planes, in registers.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// dst[c * dst_stride + r] = src[r * src_stride + c] for r in [0, rows), c in [0, columns). Elements are only moved, never computed with.
void transpose_plane(int64_t rows, int64_t columns, const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride);

/// dst[3 * i + c] = src[c * src_stride + i] for i in [0, n) and three planes: the colours of pixels.
void interleave3(int64_t n, const uint32_t* src, int64_t src_stride, uint32_t* dst);
void interleave3(int64_t n, const uint8_t* src, int64_t src_stride, uint8_t* dst);

/// The way back: dst[c * dst_stride + i] = src[3 * i + c].
void deinterleave3(int64_t n, const uint32_t* src, uint32_t* dst, int64_t dst_stride);
void deinterleave3(int64_t n, const uint8_t* src, uint8_t* dst, int64_t dst_stride);

inline void transpose_plane(int64_t rows, int64_t columns, const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  transpose_plane(rows, columns, reinterpret_cast<const uint32_t*>(src), src_stride, reinterpret_cast<uint32_t*>(dst), dst_stride);
}

}  // namespace treadle::kernels
