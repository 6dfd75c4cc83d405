// The transforms of F(4x4, 3x3) on blocks of tiles, channels innermost.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Floats of a channel row are rounded up to this, the widest vector.
inline constexpr int64_t kWinogradLanes = 16;

/// Tiles [begin, end) of a block of `tiles_wide` tiles a row.
/// @param x  the block's input with its border: rows of `x_row` floats, pixels of `channels` floats (a multiple of kWinogradLanes)
/// @param v  36 matrices `v_matrix` floats apart, rows (tiles) of `channels` floats
void winograd_input(int64_t begin, int64_t end, int64_t tiles_wide, int64_t channels, const float* x, int64_t x_row, float* v,
                    int64_t v_matrix);

/// @param m      36 matrices `m_matrix` floats apart, rows (tiles) of `channels` floats, of which the first `valid` count
/// @param bias   `valid` values or null
/// @param low, high  bounds of the result
/// @param y      the block's output: rows of `y_row` floats, pixels of `channels` floats
/// @param finite  per tile: whether all its results are
void winograd_output(int64_t begin, int64_t end, int64_t tiles_wide, int64_t channels, int64_t valid, const float* m, int64_t m_matrix,
                     const float* bias, float low, float high, float* y, int64_t y_row, uint8_t* finite);

}  // namespace treadle::kernels
