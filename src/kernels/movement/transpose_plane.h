// Transposition of a plane of 32-bit elements, in registers.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// dst[c * dst_stride + r] = src[r * src_stride + c] for r in [0, rows), c in [0, columns). Elements are only moved, never computed with.
void transpose_plane(int64_t rows, int64_t columns, const uint32_t* src, int64_t src_stride, uint32_t* dst, int64_t dst_stride);

inline void transpose_plane(int64_t rows, int64_t columns, const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  transpose_plane(rows, columns, reinterpret_cast<const uint32_t*>(src), src_stride, reinterpret_cast<uint32_t*>(dst), dst_stride);
}

}  // namespace treadle::kernels
