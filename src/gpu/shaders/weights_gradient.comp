// The gradient of a convolution's weights, dW = dY X. Rows are the output channels of a group, columns are the weights of one output
// channel, and the sums are over all positions of all images. Each group of invocations computes 64 rows and 64 columns for one part of the
// sums.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

const uint ROWS = 64, COLUMNS = 64, TERMS = 16;

layout(push_constant, scalar) uniform Push {
  Elements dw, dy, x;           // dw has all parts, one after the other
  uint rows, columns, terms;    // terms: number of images * number of output positions
  uint groups;                  // number of channel groups
  uint part;                    // terms per part, a multiple of 16
  ivec2 in_size, out_size, kernel, stride, dilation, pad;  // height and width
} p;

shared float a_tile[TERMS][ROWS + 4];
shared float b_tile[TERMS][COLUMNS + 4];

float a_element(uint row, uint term, uint group) {
  const uint positions = uint(p.out_size.x * p.out_size.y);
  return p.dy.at[((term / positions * p.groups + group) * p.rows + row) * positions + term % positions];
}
float b_element(uint term, uint column, uint group) {
  const int positions = p.out_size.x * p.out_size.y, taps = p.kernel.x * p.kernel.y, position = int(term) % positions;
  const int kh = int(column) / p.kernel.y % p.kernel.x, kw = int(column) % p.kernel.y;
  const int ih = position / p.out_size.y * p.stride.x - p.pad.x + kh * p.dilation.x;
  const int iw = position % p.out_size.y * p.stride.y - p.pad.y + kw * p.dilation.y;
  if (ih < 0 || ih >= p.in_size.x || iw < 0 || iw >= p.in_size.y) return 0;
  const uint channels = p.columns / uint(taps), channel = group * channels + column / uint(taps);
  const uint plane = term / uint(positions) * channels * p.groups + channel;
  return p.x.at[(plane * uint(p.in_size.x) + uint(ih)) * uint(p.in_size.y) + uint(iw)];
}

void main() {
  const uint column_tiles = (p.columns + COLUMNS - 1) / COLUMNS, tile = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  if (tile >= column_tiles * ((p.rows + ROWS - 1) / ROWS)) return;
  const uint group = gl_WorkGroupID.z % p.groups, part = gl_WorkGroupID.z / p.groups;
  const uint first_row = tile / column_tiles * ROWS, first_column = tile % column_tiles * COLUMNS;
  const uint own = gl_LocalInvocationIndex, own_row = own / 16 * 4, own_column = own % 16 * 4;
  const uint end = min(p.terms, (part + 1) * p.part);
  float sums[4][4];
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) sums[i][j] = 0;
  for (uint k0 = part * p.part; k0 < end; k0 += TERMS) {
    for (uint e = own; e < TERMS * ROWS; e += 256) {
      const uint k = e % TERMS, row = e / TERMS;
      a_tile[k][row] = k0 + k < end && first_row + row < p.rows ? a_element(first_row + row, k0 + k, group) : 0;
    }
    for (uint e = own; e < TERMS * COLUMNS; e += 256) {
      const uint k = e % TERMS, column = e / TERMS;
      b_tile[k][column] = k0 + k < end && first_column + column < p.columns ? b_element(k0 + k, first_column + column, group) : 0;
    }
    barrier();
    for (uint k = 0; k < TERMS; ++k)
      for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j) sums[i][j] = fma(a_tile[k][own_row + i], b_tile[k][own_column + j], sums[i][j]);
    barrier();
  }
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) {
      const uint row = first_row + own_row + i, column = first_column + own_column + j;
      if (row < p.rows && column < p.columns) p.dw.at[((part * p.groups + group) * p.rows + row) * p.columns + column] = sums[i][j];
    }
}
