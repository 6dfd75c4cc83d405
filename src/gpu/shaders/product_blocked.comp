// Matrix products with weights of 4 or 8 bits, which have a scale for each block of the inner dimension. A group of 256 invocations
// computes 64 rows and 64 columns, as in product.comp. If FEW_ROWS, a group computes one column of up to 4 rows.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint BITS = 4;
layout(constant_id = 1) const uint IS_SIGNED = 0;
layout(constant_id = 2) const uint INNER_LAST = 0;  // position of the inner dimension in codes and scales: 1: last; 0: first
layout(constant_id = 3) const uint ONE_SCALE = 0;

layout(buffer_reference, scalar, buffer_reference_align = 1) readonly buffer Bytes { uint8_t at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, a;
  Bytes codes;
  Elements scales;
  Bytes zeros;                // may be null
  uint has_zeros;
  uint rows, columns, terms;
  uint block, blocks;         // terms per block; blocks per column
} p;

int code_at(Bytes codes, uint i) {
  if (BITS == 8) {
    const uint byte = uint(codes.at[i]);
    return IS_SIGNED != 0 ? int(byte << 24) >> 24 : int(byte);
  }
  const uint half_byte = uint(codes.at[i / 2]) >> (i % 2 * 4) & 15u;
  return IS_SIGNED != 0 ? int(half_byte << 28) >> 28 : int(half_byte);
}
float weight(uint k, uint column) {
  const uint block = k / p.block, scale = ONE_SCALE != 0 ? 0 : INNER_LAST != 0 ? column * p.blocks + block : block * p.columns + column;
  const int zero = p.has_zeros != 0 ? code_at(p.zeros, scale) : 0;
  return float(code_at(p.codes, INNER_LAST != 0 ? column * p.terms + k : k * p.columns + column) - zero) * to_number(p.scales.at[scale]);
}

#ifdef FEW_ROWS
shared vec4 parts[256];

void main() {
  const uint column = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (column >= p.columns) return;
  vec4 sums = vec4(0);
  for (uint k = own; k < p.terms; k += 256) {
    const float w = weight(k, column);
    for (uint row = 0; row < p.rows; ++row) sums[row] = fma(to_number(p.a.at[row * p.terms + k]), w, sums[row]);
  }
  parts[own] = sums;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) parts[own] += parts[own + reach];
    barrier();
  }
  if (own < p.rows) p.y.at[own * p.columns + column] = to_element(parts[0][own]);
}
#else
const uint ROWS = 64, COLUMNS = 64, TERMS = 16;
shared float a_tile[TERMS][ROWS + 4];
shared float b_tile[TERMS][COLUMNS + 4];

void main() {
  const uint column_tiles = (p.columns + COLUMNS - 1) / COLUMNS, tile = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  if (tile >= column_tiles * ((p.rows + ROWS - 1) / ROWS)) return;
  const uint first_row = tile / column_tiles * ROWS, first_column = tile % column_tiles * COLUMNS;
  const uint own = gl_LocalInvocationIndex, own_row = own / 16 * 4, own_column = own % 16 * 4;
  // Sums 512 terms at a time and then adds up these sums, for accuracy.
  float sums[4][4], block[4][4];
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) sums[i][j] = block[i][j] = 0;
  for (uint k0 = 0; k0 < p.terms; k0 += TERMS) {
    for (uint e = own; e < TERMS * ROWS; e += 256) {
      const uint k = e % TERMS, row = e / TERMS;
      a_tile[k][row] = k0 + k < p.terms && first_row + row < p.rows ? to_number(p.a.at[(first_row + row) * p.terms + k0 + k]) : 0;
    }
    for (uint e = own; e < TERMS * COLUMNS; e += 256) {
      const uint k = INNER_LAST != 0 ? e % TERMS : e / COLUMNS, column = INNER_LAST != 0 ? e / TERMS : e % COLUMNS;
      b_tile[k][column] = k0 + k < p.terms && first_column + column < p.columns ? weight(k0 + k, first_column + column) : 0;
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
      if (row < p.rows && column < p.columns) p.y.at[row * p.columns + column] = to_element(sums[i][j]);
    }
}
#endif
