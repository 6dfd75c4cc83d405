// MaxPool and AveragePool of two dimensions. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;  // 0: maximum; 1: average over taps inside the input; 2: over taps inside the padded input

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;                 // number of elements of y
  ivec2 in_size, out_size;    // height and width, as in all ivec2 below
  ivec2 kernel, stride, dilation, pad;
  ivec2 padded;               // coordinate at which the input with its pads ends
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const int ow = int(element % uint(p.out_size.y)), oh = int(element / uint(p.out_size.y) % uint(p.out_size.x));
  const uint plane = element / uint(p.out_size.x * p.out_size.y) * uint(p.in_size.x * p.in_size.y);
  float result = KIND == 0 ? -1.0 / 0.0 : 0;
  int taps = 0;
  for (int kh = 0; kh < p.kernel.x; ++kh)
    for (int kw = 0; kw < p.kernel.y; ++kw) {
      const int ih = oh * p.stride.x - p.pad.x + kh * p.dilation.x, iw = ow * p.stride.y - p.pad.y + kw * p.dilation.y;
      const bool inside = ih >= 0 && ih < p.in_size.x && iw >= 0 && iw < p.in_size.y;
      if (KIND == 2 ? ih < p.padded.x && iw < p.padded.y : inside) ++taps;
      if (!inside) continue;
      const float x = to_number(p.x.at[plane + uint(ih * p.in_size.y + iw)]);
      result = KIND == 0 ? (x > result || isnan(x) ? x : result) : result + x;
    }
  p.y.at[element] = to_element(KIND == 0 ? result : result / float(taps));
}
