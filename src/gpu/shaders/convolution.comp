// Convolutions with few output channels per group, such as depthwise ones. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "epilogue.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, w, bias;
  Elements operands[3];  // operands of the epilogue: of the operators after the product
  uint has_bias;
  uint rows, columns, terms;  // numbers of output channels per group, of output positions, of weights per output channel
  uint groups;
  ivec2 in_size, out_size, kernel, stride, dilation, pad;  // height and width
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
    const uint plane = (batch * uint(channels) + uint(channel)) * uint(p.in_size.x * p.in_size.y);
    for (int kh = 0; kh < p.kernel.x; ++kh) {
      const int ih = oh * p.stride.x - p.pad.x + kh * p.dilation.x;
      if (ih < 0 || ih >= p.in_size.x) continue;
      for (int kw = 0; kw < p.kernel.y; ++kw) {
        const int iw = ow * p.stride.y - p.pad.y + kw * p.dilation.y;
        if (iw < 0 || iw >= p.in_size.y) continue;
        const float w = to_number(p.w.at[first_weight + uint((channel * p.kernel.x + kh) * p.kernel.y + kw)]);
        sum = fma(w, to_number(p.x.at[plane + uint(ih * p.in_size.y + iw)]), sum);
      }
    }
  }
  const uint channel = group * p.rows + row;
  if (p.has_bias != 0) sum += to_number(p.bias.at[channel]);
  const uint in_result = batch * p.rows * p.columns + element;
  p.y.at[in_result] = to_element(finished(sum, p.operands, in_result, channel, batch * p.rows + row));
}
