// Normalizations of rows: y = (x - mean) / sqrt(variance + epsilon) * scale + bias. Each group of invocations computes one row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint CENTERED = 1;  // 0: without subtracting the mean (RMSNormalization)

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Floats { float at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, x, scale, bias;  // scale and bias may be null
  Floats means, factors;       // per row: the mean, and 1 / deviation; may be null
  uint has_scale, has_bias, has_means, has_factors;
  uint rows, extent;
  // Scale and bias have `channels` elements, which are used cyclically. Row r begins with element r * row_channels of them. Each of them is
  // used for `channel_extent` consecutive elements of a row.
  uint row_channels, channel_extent, channels;
  float epsilon;
} p;

shared float parts[256];

float over_group(float value) {
  const uint own = gl_LocalInvocationIndex;
  parts[own] = value;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) parts[own] += parts[own + reach];
    barrier();
  }
  const float result = parts[0];
  barrier();
  return result;
}

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.rows) return;
  const uint start = row * p.extent;
  float mean = 0;
  if (CENTERED != 0) {
    float sum = 0;
    for (uint k = own; k < p.extent; k += 256) sum += to_number(p.x.at[start + k]);
    mean = over_group(sum) / float(p.extent);
  }
  float squares = 0;
  for (uint k = own; k < p.extent; k += 256) {
    const float x = to_number(p.x.at[start + k]) - mean;
    squares += x * x;
  }
  const float factor = 1 / sqrt(over_group(squares) / float(p.extent) + p.epsilon);
  if (own == 0 && p.has_means != 0) p.means.at[row] = mean;
  if (own == 0 && p.has_factors != 0) p.factors.at[row] = factor;
  for (uint k = own; k < p.extent; k += 256) {
    const uint channel = (row * p.row_channels + k / p.channel_extent) % p.channels;
    float y = (to_number(p.x.at[start + k]) - mean) * factor;
    if (p.has_scale != 0) y *= to_number(p.scale.at[channel]);
    if (p.has_bias != 0) y += to_number(p.bias.at[channel]);
    p.y.at[start + k] = to_element(y);
  }
}
