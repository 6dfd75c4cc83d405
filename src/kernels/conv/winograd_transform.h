// The transforms of F(4x4, 3x3) and F(2x2, 3x3) on blocks of tiles, channels innermost. `out`, 4 or 2: outputs of a tile's side; a tile has
// (out + 2)^2 points, a matrix for each.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Floats of a row of sums are rounded up to this, the widest vector.
inline constexpr int64_t kWinogradLanes = 16;

/// A block's way in: v = B^T x B. What lies outside the image is zero.
struct WinogradInput {
  int64_t tiles_wide;
  const float* x;  ///< the image: rows of `columns` pixels, `x_pixel` floats apart
  int64_t rows, columns, x_pixel;
  int64_t top, left;  ///< where in the image the first tile begins; negative in the border
  int64_t channels;
  const float* zeros;  ///< as many as there are channels
  float* v;            ///< (out + 2)^2 matrices `v_matrix` floats apart, rows (tiles) of `v_row` floats
  int64_t v_matrix, v_row;
};
/// Tiles [begin, end).
void winograd_input(int out, int64_t begin, int64_t end, const WinogradInput& input);

/// G g G^T, computed in double, of `channels` channels of the filters of one panel of packed weights.
/// @param weights  of the first filter, its first channel, at any address: filters `filter_floats` floats apart, 9 floats a channel
/// @param filters  of the panel; the columns up to its `width` become zero
/// @param packed   (out + 2)^2 matrices `packed_matrix` floats apart, rows (channels) of `width` floats, a multiple of the packing's
/// vectors
void winograd_weights(int out, const float* weights, int64_t filter_floats, int64_t channels, int64_t filters, int64_t width, float* packed,
                      int64_t packed_matrix);

/// A block's way out: y = clamp(A^T m A + bias + residual).
struct WinogradOutput {
  int64_t tiles_wide;
  const float* m;           ///< (out + 2)^2 matrices `m_matrix` floats apart, rows (tiles) of `m_row` floats
  int64_t m_matrix, m_row;  ///< m_row: a multiple of kWinogradLanes, at least `channels`
  int64_t rows, columns;    ///< of the block's output; tiles may stand out
  int64_t channels;
  const float* bias;      ///< `channels` values or null
  const float* residual;  ///< [rows][columns][channels], or null
  float low, high;
  float* y;  ///< as the residual, but pixels `y_pixel` floats apart
  int64_t y_pixel;
  uint8_t* finite;  ///< per tile: whether all its results are
};
/// Tiles [begin, end).
void winograd_output(int out, int64_t begin, int64_t end, const WinogradOutput& output);

/// A block's gradient of its outputs on the way to the gradient of weights: z = A dy A^T, the transpose of the way out. Pixels of tiles
/// that stand out count as zero.
struct WinogradOutputGradient {
  int64_t tiles_wide;
  const float* dy;        ///< [rows][columns][channels]
  int64_t rows, columns;  ///< of the block
  int64_t channels;
  float* z;  ///< (out + 2)^2 matrices `z_matrix` floats apart, rows (tiles) of `z_row` floats
  int64_t z_matrix, z_row;
};
/// Tiles [begin, end).
void winograd_output_gradient(int out, int64_t begin, int64_t end, const WinogradOutputGradient& gradient);

/// G^T s G: the gradient of one filter's weights of `channels` channels.
/// @param s  (out + 2)^2 rows `s_matrix` floats apart
/// @param dw  9 floats a channel
/// @return whether all of them are finite
bool winograd_weights_gradient(int out, const float* s, int64_t s_matrix, int64_t channels, float* dw);

}  // namespace treadle::kernels
