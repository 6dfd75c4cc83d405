// Converts integer sums of products. To codes: y = saturate(round((sum + bias) x_scale w_scale / y_scale) + y_zero). To floats: y = sum
// x_scale w_scale.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint Y_SIGNED = 0;
layout(constant_id = 1) const uint TO_FLOAT = 0;

const uint HAS_BIAS = 1, X_PER_ROW = 2, W_PER_ROW = 4, W_PER_COLUMN = 8;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Ints { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };

layout(push_constant, scalar) uniform Push {
  Words y;
  Ints sums, bias;                  // bias: one number per row
  Floats x_scale, w_scale, y_scale;
  Words y_zero;
  uint count, rows, columns;        // number of sums; extents of each matrix
  uint flags;
} p;

bool has(uint flag) { return (p.flags & flag) != 0; }

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uint column = i % p.columns, row = i / p.columns % p.rows;
  const int sum = p.sums.at[i] + (has(HAS_BIAS) ? p.bias.at[row] : 0);
  const float x_scale = p.x_scale.at[has(X_PER_ROW) ? row : 0];
  const float w_scale = p.w_scale.at[has(W_PER_ROW) ? row : has(W_PER_COLUMN) ? column : 0];
  const uint zero = TO_FLOAT != 0 ? 0 : uint(p.y_zero.at[0]);
  const float low = Y_SIGNED != 0 ? -128.0 : 0.0, offset = float(Y_SIGNED != 0 ? int(zero << 24) >> 24 : int(zero));
  precise float scale = x_scale * w_scale;
  if (TO_FLOAT != 0) {
    Floats(p.y).at[i] = float(sum) * scale;
    return;
  }
  scale /= p.y_scale.at[0];
  precise float y = float(sum) * scale;
  y = clamp(roundEven(y) + offset, low, low + 255.0);
  p.y.at[i] = WORD(uint(int(y)) & 0xFFu);
}
