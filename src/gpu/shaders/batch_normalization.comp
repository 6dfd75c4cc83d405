// BatchNormalization with given statistics. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, scale, bias, mean, variance;
  uint count, inner, channels;
  float epsilon;
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint channel = element / p.inner % p.channels;
  const float factor = to_number(p.scale.at[channel]) / sqrt(to_number(p.variance.at[channel]) + p.epsilon);
  const float y = (to_number(p.x.at[element]) - to_number(p.mean.at[channel])) * factor + to_number(p.bias.at[channel]);
  p.y.at[element] = to_element(y);
}
