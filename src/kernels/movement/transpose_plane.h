// Transposes planes in registers.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Sets dst[c * dst_stride + r] = src[r * src_stride + c] for r in [0, rows), c in [0, columns). Preserves the bits of NaN.
void transpose_plane(int64_t rows, int64_t columns, const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride);

/// Like the function above, for 2-byte elements. @pre at least 8 rows and 8 columns
void transpose_plane(int64_t rows, int64_t columns, const uint16_t* src, int64_t src_stride, uint16_t* dst, int64_t dst_stride);

/// Sets dst[planes * i + c] = src[c * src_stride + i] for i in [0, n): for example, c is a pixel's color or a column of DepthToSpace's
/// block. @param planes  2, 3 or 4
void interleave(int planes, int64_t n, const uint8_t* src, int64_t src_stride, uint8_t* dst);
void interleave(int planes, int64_t n, const uint16_t* src, int64_t src_stride, uint16_t* dst);
void interleave(int planes, int64_t n, const uint32_t* src, int64_t src_stride, uint32_t* dst);

/// The inverse of interleave(): sets dst[c * dst_stride + i] = src[planes * i + c].
void deinterleave(int planes, int64_t n, const uint8_t* src, uint8_t* dst, int64_t dst_stride);
void deinterleave(int planes, int64_t n, const uint16_t* src, uint16_t* dst, int64_t dst_stride);
void deinterleave(int planes, int64_t n, const uint32_t* src, uint32_t* dst, int64_t dst_stride);

inline void transpose_plane(int64_t rows, int64_t columns, const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  transpose_plane(rows, columns, reinterpret_cast<const uint32_t*>(src), src_stride, reinterpret_cast<uint32_t*>(dst), dst_stride);
}

}  // namespace treadle::kernels
