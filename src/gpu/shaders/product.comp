// Batches of matrix products Y = alpha A B + beta C or, if CONVOLUTION, convolutions. A group of 256 invocations computes 64 rows and 64
// columns of Y; each invocation computes 4 x 4 of them. The group copies the operands to shared memory, for 16 terms of the sums at a time.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "epilogue.glsl"

layout(local_size_x = 256) in;

const uint ROWS = 64, COLUMNS = 64, TERMS = 16;

#ifdef CONVOLUTION
// Rows are the output channels of one channel group, columns are output positions, and terms are the weights of one output channel.
layout(push_constant, scalar) uniform Push {
  Elements y, x, w, bias;  // bias may be null
  Elements operands[3];    // operands of the epilogue: of the operators after the product
  uint has_bias;
  uint rows, columns, terms;
  uint groups;                          // number of channel groups
  ivec2 in_size;                        // height and width, as for all ivec2 below
  ivec2 out_size, kernel, stride, dilation, pad;
} p;
#else
layout(push_constant, scalar) uniform Push {
  Elements y, a, b, c;   // c may be null
  Elements operands[3];  // operands of the epilogue: of the operators after the product
  uint has_c;
  uint rows, columns, terms;
  uvec2 a_step, b_step, c_step;  // distances in elements from row to row, and from column to column
  uvec3 batch_step;              // distances in elements from matrix to matrix, for a, b and c
  float alpha, beta;
} p;
#endif

#if defined(ELEMENT_F32) && !defined(CONVOLUTION)
#include "bfloat16.glsl"
#include "float16.glsl"
layout(constant_id = 3) const uint ROUNDED = 0;  // how operands are rounded: 0: not; 1: to bfloat16; 2: to float16
float rounded(float x) {
  if (ROUNDED == 1) return uintBitsToFloat(rounded_word(x) << 16);
  return ROUNDED == 2 ? unpackHalf2x16(half_word(x)).x : x;
}
#else
#define rounded(x) x
#endif

shared float a_tile[TERMS][ROWS + 4];
shared float b_tile[TERMS][COLUMNS + 4];

#ifdef CONVOLUTION
float a_element(uint row, uint k, uint batch) { return to_number(p.w.at[(batch % p.groups * p.rows + row) * p.terms + k]); }
float b_element(uint k, uint column, uint batch) {
  // The terms are ordered by input channel, then by height and by width of the kernel.
  const int taps = p.kernel.x * p.kernel.y, channels = int(p.terms) / taps;
  const int kw = int(k) % p.kernel.y, kh = int(k) / p.kernel.y % p.kernel.x;
  const int ow = int(column) % p.out_size.y, oh = int(column) / p.out_size.y;
  const int ih = oh * p.stride.x - p.pad.x + kh * p.dilation.x, iw = ow * p.stride.y - p.pad.y + kw * p.dilation.y;
  if (ih < 0 || ih >= p.in_size.x || iw < 0 || iw >= p.in_size.y) return 0;
  const uint plane = batch * uint(channels) + k / uint(taps);
  return to_number(p.x.at[(plane * uint(p.in_size.x) + uint(ih)) * uint(p.in_size.y) + uint(iw)]);
}
#else
float a_element(uint row, uint k, uint batch) { return to_number(p.a.at[batch * p.batch_step.x + row * p.a_step.x + k * p.a_step.y]); }
float b_element(uint k, uint column, uint batch) { return to_number(p.b.at[batch * p.batch_step.y + k * p.b_step.x + column * p.b_step.y]); }
#endif

void main() {
  // Tiles are numbered along the first and second dimension of the dispatch, since the limit of one dimension may be too small.
  const uint column_tiles = (p.columns + COLUMNS - 1) / COLUMNS, tile = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  if (tile >= column_tiles * ((p.rows + ROWS - 1) / ROWS)) return;
  const uint batch = gl_WorkGroupID.z, first_row = tile / column_tiles * ROWS, first_column = tile % column_tiles * COLUMNS;
  const uint own = gl_LocalInvocationIndex, own_row = own / 16 * 4, own_column = own % 16 * 4;
  // Sums 512 terms at a time and then adds up these sums. In one long sum, small terms would be lost by rounding.
  float sums[4][4], block[4][4];
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) sums[i][j] = block[i][j] = 0;
  for (uint k0 = 0; k0 < p.terms; k0 += TERMS) {
    for (uint e = own; e < TERMS * ROWS; e += 256) {
      const uint k = e % TERMS, row = e / TERMS;
      a_tile[k][row] = k0 + k < p.terms && first_row + row < p.rows ? rounded(a_element(first_row + row, k0 + k, batch)) : 0;
    }
    for (uint e = own; e < TERMS * COLUMNS; e += 256) {
      const uint column = e % COLUMNS, k = e / COLUMNS;
      b_tile[k][column] = k0 + k < p.terms && first_column + column < p.columns ? rounded(b_element(k0 + k, first_column + column, batch)) : 0;
    }
    barrier();
    for (uint k = 0; k < TERMS; ++k)
      for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j) block[i][j] = fma(a_tile[k][own_row + i], b_tile[k][own_column + j], block[i][j]);
    if (k0 / TERMS % 32 == 31 || k0 + TERMS >= p.terms)
      for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j) {
          sums[i][j] += block[i][j];
          block[i][j] = 0;
        }
    barrier();
  }
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) {
      const uint row = first_row + own_row + i, column = first_column + own_column + j;
      if (row >= p.rows || column >= p.columns) continue;
      const uint result_row = batch * p.rows + row, element = result_row * p.columns + column;
#ifdef CONVOLUTION
      const uint channel = batch % p.groups * p.rows + row;
      const float y = sums[i][j] + (p.has_bias != 0 ? to_number(p.bias.at[channel]) : 0);
#else
      const uint channel = column;
      float y = p.alpha * sums[i][j];
      if (p.has_c != 0) y = fma(p.beta, to_number(p.c.at[batch * p.batch_step.z + row * p.c_step.x + column * p.c_step.y]), y);
#endif
      p.y.at[element] = to_element(finished(y, p.operands, element, channel, result_row));
    }
}
