// LRN over channels. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count, channels, inner;
  int below, above;        // number of channels before and after that are included
  float alpha, beta, bias;
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const int channel = int(element / p.inner % p.channels);
  const int first = max(-p.below, -channel), last = min(p.above, int(p.channels) - 1 - channel);
  NUMBER sum = NUMBER(0);
  for (int k = first; k <= last; ++k) {
    const NUMBER x = to_number(p.x.at[uint(int(element) + k * int(p.inner))]);
    sum += x * x;
  }
  const NUMBER base = NUMBER(p.bias) + NUMBER(p.alpha) / NUMBER(p.below + p.above + 1) * sum;
  p.y.at[element] = to_element(to_number(p.x.at[element]) / power_of(base, NUMBER(p.beta)));
}
