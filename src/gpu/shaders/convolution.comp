// Convolutions whose groups have few output channels, such as depthwise ones. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, w, bias;
  uint has_bias;
  uint rows, columns, terms;  // numbers of output channels of a group, of positions of the output, and of weights of an output channel
  uint groups;
  ivec3 in_size;
  ivec2 out_size, kernel;
  ivec3 stride, dilation, pad;
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.rows * p.columns) return;
  const uint batch = gl_WorkGroupID.z, group = batch % p.groups, row = element / p.columns;
  const int column = int(element % p.columns);
  const int ow = column % p.out_size.y, oh = column / p.out_size.y;
  const int channels = int(p.terms) / (p.kernel.x * p.kernel.y);
  const uint first_weight = (group * p.rows + row) * p.terms;
  float sum = 0;
  for (int channel = 0; channel < channels; ++channel) {
    const uint plane = (batch * uint(channels) + uint(channel)) * uint(p.in_size.y * p.in_size.z);
    for (int kh = 0; kh < p.kernel.x; ++kh) {
      const int ih = oh * p.stride.y - p.pad.y + kh * p.dilation.y;
      if (ih < 0 || ih >= p.in_size.y) continue;
      for (int kw = 0; kw < p.kernel.y; ++kw) {
        const int iw = ow * p.stride.z - p.pad.z + kw * p.dilation.z;
        if (iw < 0 || iw >= p.in_size.z) continue;
        const float w = to_number(p.w.at[first_weight + uint((channel * p.kernel.x + kh) * p.kernel.y + kw)]);
        sum = fma(w, to_number(p.x.at[plane + uint(ih * p.in_size.z + iw)]), sum);
      }
    }
  }
  if (p.has_bias != 0) sum += to_number(p.bias.at[group * p.rows + row]);
  p.y.at[batch * p.rows * p.columns + element] = to_element(sum);
}
