// ConvTranspose with one or two spatial axes. Each invocation computes one element: a weighted sum of the inputs whose windows contain it.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, w, bias;  // bias may be null
  uint has_bias;
  uint count;               // number of elements of y
  int channels, rows;       // channels of x and of y in one group
  int groups;
  ivec2 out_size, in_size;  // height and width, as for all ivec2 below
  ivec2 kernel, stride, dilation, pad;
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const int ow = int(element % uint(p.out_size.y)), oh = int(element / uint(p.out_size.y) % uint(p.out_size.x));
  const uint plane = element / uint(p.out_size.x * p.out_size.y);
  const int channel_out = int(plane % uint(p.rows * p.groups)), group = channel_out / p.rows;
  const uint image = plane / uint(p.rows * p.groups);
  float sum = 0;
  for (int kh = 0; kh < p.kernel.x; ++kh) {
    const int h = oh + p.pad.x - kh * p.dilation.x, ih = h / p.stride.x;
    if (h < 0 || h % p.stride.x != 0 || ih >= p.in_size.x) continue;
    for (int kw = 0; kw < p.kernel.y; ++kw) {
      const int v = ow + p.pad.y - kw * p.dilation.y, iw = v / p.stride.y;
      if (v < 0 || v % p.stride.y != 0 || iw >= p.in_size.y) continue;
      for (int c = 0; c < p.channels; ++c) {
        const uint channel = uint(group * p.channels + c);
        const uint at = ((image * uint(p.channels * p.groups) + channel) * uint(p.in_size.x) + uint(ih)) * uint(p.in_size.y) + uint(iw);
        const uint weight = ((channel * uint(p.rows) + uint(channel_out % p.rows)) * uint(p.kernel.x) + uint(kh)) * uint(p.kernel.y) + uint(kw);
        sum = fma(to_number(p.x.at[at]), to_number(p.w.at[weight]), sum);
      }
    }
  }
  if (p.has_bias != 0) sum += to_number(p.bias.at[channel_out]);
  p.y.at[element] = to_element(sum);
}
