// Products of 8-bit integers minus their zero points, as int32: batches of matrices or, if CONVOLUTION or DIRECT, convolutions. A group of
// 256 invocations computes 64 rows and 64 columns. If DIRECT, for few rows, each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint X_SIGNED = 0;
layout(constant_id = 1) const uint W_SIGNED = 0;

const uint ROWS = 64, COLUMNS = 64, TERMS = 16;
const uint HAS_X_ZERO = 1, HAS_W_ZERO = 2, X_ZERO_PER_LINE = 4, W_ZERO_PER_LINE = 8;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int at[]; };

#if defined(CONVOLUTION) || defined(DIRECT)
// Rows are the output channels of one channel group, columns are output positions, and terms are the weights of one output channel.
layout(push_constant, scalar) uniform Push {
  Ints y;
  Words x, w, x_zero, w_zero;
  uint flags;
  uint rows, terms, groups;
  ivec3 in_size, out_size, kernel, stride, dilation, pad;  // depth, height and width
} p;
#else
layout(push_constant, scalar) uniform Push {
  Ints y;
  Words x, w, x_zero, w_zero;
  uint flags;
  uint rows, columns, terms;
  uvec2 batch_step, zero_step;  // distances from matrix to matrix, for x and w; for their zero points
} p;
#endif

bool has(uint flag) { return (p.flags & flag) != 0; }
int number_of(uint word, uint is_signed) { return is_signed != 0 ? int(word << 24) >> 24 : int(word); }

#if defined(CONVOLUTION) || defined(DIRECT)
int x_zero() { return has(HAS_X_ZERO) ? number_of(uint(p.x_zero.at[0]), X_SIGNED) : 0; }
int weight(uint row, uint k, uint batch) {
  const uint channel = batch % p.groups * p.rows + row;
  const int zero = has(HAS_W_ZERO) ? number_of(uint(p.w_zero.at[has(W_ZERO_PER_LINE) ? channel : 0]), W_SIGNED) : 0;
  return number_of(uint(p.w.at[channel * p.terms + k]), W_SIGNED) - zero;
}
int pixel(int zero, uint k, uint column, uint batch) {
  const int kw = int(k) % p.kernel.z, kh = int(k) / p.kernel.z % p.kernel.y, kd = int(k) / (p.kernel.z * p.kernel.y) % p.kernel.x;
  const int taps = p.kernel.x * p.kernel.y * p.kernel.z;
  const uvec3 size = uvec3(p.out_size);
  const ivec3 place = ivec3(column / (size.y * size.z), column / size.z % size.y, column % size.z);
  const ivec3 at = place * p.stride - p.pad + ivec3(kd, kh, kw) * p.dilation;
  if (any(lessThan(at, ivec3(0))) || any(greaterThanEqual(at, p.in_size))) return 0;
  const uint plane = batch * (p.terms / uint(taps)) + k / uint(taps);
  const uvec3 in_size = uvec3(p.in_size), inside = uvec3(at);
  return number_of(uint(p.x.at[((plane * in_size.x + inside.x) * in_size.y + inside.y) * in_size.z + inside.z]), X_SIGNED) - zero;
}
#endif

#ifdef DIRECT
void main() {
  const uint columns = uint(p.out_size.x * p.out_size.y * p.out_size.z), batch = gl_WorkGroupID.z;
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.rows * columns) return;
  const int zero = x_zero();
  int sum = 0;
  for (uint k = 0; k < p.terms; ++k) sum += weight(element / columns, k, batch) * pixel(zero, k, element % columns, batch);
  p.y.at[batch * p.rows * columns + element] = sum;
}
#else
shared int a_tile[TERMS][ROWS + 4];
shared int b_tile[TERMS][COLUMNS + 4];

#ifdef CONVOLUTION
int a_element(uint row, uint k, uint batch) { return weight(row, k, batch); }
int b_element(int zero, uint k, uint column, uint batch) { return pixel(zero, k, column, batch); }
#else
int x_zero() { return 0; }
int a_element(uint row, uint k, uint batch) {
  const uint at = batch * p.zero_step.x + (has(X_ZERO_PER_LINE) ? row : 0);
  const int zero = has(HAS_X_ZERO) ? number_of(uint(p.x_zero.at[at]), X_SIGNED) : 0;
  return number_of(uint(p.x.at[batch * p.batch_step.x + row * p.terms + k]), X_SIGNED) - zero;
}
int b_element(int unused, uint k, uint column, uint batch) {
  const uint at = batch * p.zero_step.y + (has(W_ZERO_PER_LINE) ? column : 0);
  const int zero = has(HAS_W_ZERO) ? number_of(uint(p.w_zero.at[at]), W_SIGNED) : 0;
  return number_of(uint(p.w.at[batch * p.batch_step.y + k * p.columns + column]), W_SIGNED) - zero;
}
#endif

void main() {
#ifdef CONVOLUTION
  const uint columns = uint(p.out_size.x * p.out_size.y * p.out_size.z);
#else
  const uint columns = p.columns;
#endif
  const uint column_tiles = (columns + COLUMNS - 1) / COLUMNS, tile = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  if (tile >= column_tiles * ((p.rows + ROWS - 1) / ROWS)) return;
  const uint batch = gl_WorkGroupID.z, first_row = tile / column_tiles * ROWS, first_column = tile % column_tiles * COLUMNS;
  const uint own = gl_LocalInvocationIndex, own_row = own / 16 * 4, own_column = own % 16 * 4;
  const int zero = x_zero();
  int sums[4][4];
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) sums[i][j] = 0;
  for (uint k0 = 0; k0 < p.terms; k0 += TERMS) {
    for (uint e = own; e < TERMS * ROWS; e += 256) {
      const uint k = e % TERMS, row = e / TERMS;
      a_tile[k][row] = k0 + k < p.terms && first_row + row < p.rows ? a_element(first_row + row, k0 + k, batch) : 0;
    }
    for (uint e = own; e < TERMS * COLUMNS; e += 256) {
      const uint column = e % COLUMNS, k = e / COLUMNS;
      b_tile[k][column] = k0 + k < p.terms && first_column + column < columns ? b_element(zero, k0 + k, first_column + column, batch) : 0;
    }
    barrier();
    for (uint k = 0; k < TERMS; ++k)
      for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j) sums[i][j] += a_tile[k][own_row + i] * b_tile[k][own_column + j];
    barrier();
  }
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) {
      const uint row = first_row + own_row + i, column = first_column + own_column + j;
      if (row < p.rows && column < columns) p.y.at[(batch * p.rows + row) * columns + column] = sums[i][j];
    }
}
#endif
