// Transforms of F(4x4, 3x3) and F(2x2, 3x3) on blocks of tiles, NHWC. `out`, 4 or 2, is the tile side in outputs. A tile has (out + 2)^2
// points, and there is one matrix per point.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Rows of the matrices are padded to a multiple of this number of floats, which is the length of the widest vector.
inline constexpr int64_t kWinogradLanes = 16;

/// The input transform of a block: v = B^T x B. Positions outside the image are zero.
struct WinogradInput {
  int64_t tiles_wide;
  const float* x;  ///< address of the image: rows of `columns` pixels, `x_pixel` floats apart
  int64_t rows, columns, x_pixel;
  int64_t top, left;  ///< position of the first tile in the image; negative if the tile begins in the border
  int64_t channels;
  const float* zeros;  ///< an array of `channels` zeros
  float* v;            ///< (out + 2)^2 matrices `v_matrix` floats apart, rows (tiles) of `v_row` floats
  int64_t v_matrix, v_row;
};
/// Transforms tiles [begin, end).
void winograd_input(int out, int64_t begin, int64_t end, const WinogradInput& input);

/// Computes G g G^T in double for `channels` channels of the filters of one panel of packed weights.
/// @param weights  first channel of the first filter, may be unaligned; filters are `filter_floats` floats apart, channels 9 floats
/// @param filters  number of filters in the panel; columns up to its `width` become zero
/// @param packed   (out + 2)^2 matrices `packed_matrix` floats apart, rows (channels) of `width` floats, a multiple of the vector length
void winograd_weights(int out, const float* weights, int64_t filter_floats, int64_t channels, int64_t filters, int64_t width, float* packed,
                      int64_t packed_matrix);

/// The output transform of a block: y = clamp(A^T m A + bias + residual).
struct WinogradOutput {
  int64_t tiles_wide;
  const float* m;           ///< (out + 2)^2 matrices `m_matrix` floats apart, rows (tiles) of `m_row` floats
  int64_t m_matrix, m_row;  ///< m_row: a multiple of kWinogradLanes, at least `channels`
  int64_t rows, columns;    ///< size of the block's output; tiles may extend beyond it
  int64_t channels;
  const float* bias;      ///< `channels` values or null
  const float* residual;  ///< [rows][columns][channels]; null: no residual
  float low, high;
  float* y;  ///< like the residual, but pixels are `y_pixel` floats apart
  int64_t y_pixel;
  uint8_t* finite;  ///< for each tile: 1 if all its results are finite
};
/// Transforms tiles [begin, end).
void winograd_output(int out, int64_t begin, int64_t end, const WinogradOutput& output);

/// The transform of a block's output gradient, for the gradient of weights: z = A dy A^T, the transpose of the output transform. Pixels of
/// tiles beyond the output count as zero.
struct WinogradOutputGradient {
  int64_t tiles_wide;
  const float* dy;        ///< with the shape [rows][columns][channels]
  int64_t rows, columns;  ///< size of the block
  int64_t channels;
  float* z;  ///< (out + 2)^2 matrices `z_matrix` floats apart, rows (tiles) of `z_row` floats
  int64_t z_matrix, z_row;
};
/// Transforms tiles [begin, end).
void winograd_output_gradient(int out, int64_t begin, int64_t end, const WinogradOutputGradient& gradient);

/// Computes G^T s G, the gradient of the weights of one filter for `channels` channels.
/// @param s  (out + 2)^2 rows `s_matrix` floats apart
/// @param dw  9 floats per channel @return true if all of them are finite
bool winograd_weights_gradient(int out, const float* s, int64_t s_matrix, int64_t channels, float* dw);

}  // namespace treadle::kernels
