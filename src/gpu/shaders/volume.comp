// 3-D convolutions. Each invocation computes four adjacent output channels of a group at one position. If TRANSPOSED, it computes a
// ConvTranspose, from the inputs whose windows contain the position.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TRANSPOSED = 0;

const uint CHANNELS = 4;

layout(push_constant, scalar) uniform Push {
  Elements y, x, w, bias;  // bias may be null
  uint has_bias;
  uint rows, columns;      // output channels per group; number of output positions
  uint channels, groups;   // input channels per group; number of groups
  ivec3 in_size, out_size, kernel, stride, dilation, pad;  // depth, height and width
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex, quads = (p.rows + CHANNELS - 1) / CHANNELS;
  if (i >= quads * p.columns) return;
  const uint batch = gl_WorkGroupID.z, group = batch % p.groups, first_row = i / p.columns * CHANNELS, column = i % p.columns;
  const uvec3 size = uvec3(p.out_size);
  const ivec3 place = ivec3(column / (size.y * size.z), column / size.z % size.y, column % size.z);
  const uint taps = uint(p.kernel.x * p.kernel.y * p.kernel.z), pixels = uint(p.in_size.x * p.in_size.y * p.in_size.z);
  float sums[CHANNELS] = {0, 0, 0, 0};
  for (int kd = 0; kd < p.kernel.x; ++kd)
    for (int kh = 0; kh < p.kernel.y; ++kh)
      for (int kw = 0; kw < p.kernel.z; ++kw) {
        const ivec3 tap = ivec3(kd, kh, kw) * p.dilation;
        ivec3 at = place * p.stride - p.pad + tap;
        if (TRANSPOSED != 0) {
          const ivec3 from = place + p.pad - tap;
          at = from / p.stride;
          if (any(lessThan(from, ivec3(0))) || at * p.stride != from) continue;
        }
        if (any(lessThan(at, ivec3(0))) || any(greaterThanEqual(at, p.in_size))) continue;
        const uint pixel = uint((at.x * p.in_size.y + at.y) * p.in_size.z + at.z), weight = uint((kd * p.kernel.y + kh) * p.kernel.z + kw);
        for (uint channel = 0; channel < p.channels; ++channel) {
          const float x = to_number(p.x.at[(batch * p.channels + channel) * pixels + pixel]);
          for (uint r = 0; r < CHANNELS; ++r) {
            const uint row = min(first_row + r, p.rows - 1);
            const uint plane_of_w =
                TRANSPOSED != 0 ? (group * p.channels + channel) * p.rows + row : (group * p.rows + row) * p.channels + channel;
            sums[r] = fma(to_number(p.w.at[plane_of_w * taps + weight]), x, sums[r]);
          }
        }
      }
  for (uint r = 0; r < CHANNELS && first_row + r < p.rows; ++r) {
    const uint row = first_row + r;
    const float y = sums[r] + (p.has_bias != 0 ? to_number(p.bias.at[group * p.rows + row]) : 0);
    p.y.at[(batch * p.rows + row) * p.columns + column] = to_element(y);
  }
}
