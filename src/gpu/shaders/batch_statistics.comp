// BatchNormalization with the statistics of the batch, and its gradient. Each group of invocations computes one channel.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint GRADIENT = 0;

layout(push_constant, scalar) uniform Push {
  Elements y, x, scale;          // in the gradient, y is dx
  Elements bias, mean, variance; // in the gradient, bias is dy, and mean and variance are not used
  Elements mean_new, variance_new;  // the new running statistics; in the gradient, dscale and dbias; null if not wanted
  uint images, channels, inner;
  uint has_mean, has_variance;
  float epsilon, momentum;
  float unbiased;                // factor from the batch's variance to that used for the running variance
} p;

uint place(uint term, uint channel) { return (term / p.inner * p.channels + channel) * p.inner + term % p.inner; }

void main() {
  const uint channel = group_index(), own = gl_LocalInvocationIndex, terms = p.images * p.inner;
  if (channel >= p.channels) return;
  float mean = 0, variance = 0;
  for (uint k = own; k < terms; k += 256) mean += p.x.at[place(k, channel)];
  mean = over_group(mean) / float(terms);
  float sum = 0, dot = 0;
  for (uint k = own; k < terms; k += 256) {
    const float x = p.x.at[place(k, channel)] - mean;
    variance += x * x;
    if (GRADIENT == 0) continue;
    const float d = p.bias.at[place(k, channel)];
    sum += d;
    dot += d * x;
  }
  variance = over_group(variance) / float(terms);
  const float factor = 1 / sqrt(variance + p.epsilon), scale = p.scale.at[channel];
  if (GRADIENT == 0) {
    const float bias = p.bias.at[channel];
    for (uint k = own; k < terms; k += 256) {
      const uint at = place(k, channel);
      p.y.at[at] = (p.x.at[at] - mean) * factor * scale + bias;
    }
    if (own != 0) return;
    if (p.has_mean != 0) p.mean_new.at[channel] = p.mean.at[channel] * p.momentum + mean * (1 - p.momentum);
    if (p.has_variance != 0)
      p.variance_new.at[channel] = p.variance.at[channel] * p.momentum + variance * p.unbiased * (1 - p.momentum);
    return;
  }
  sum = over_group(sum);
  dot = over_group(dot);
  for (uint k = own; k < terms; k += 256) {
    const uint at = place(k, channel);
    p.y.at[at] = scale * factor * (p.bias.at[at] - sum / float(terms) - (p.x.at[at] - mean) * (dot * factor * factor / float(terms)));
  }
  if (own != 0) return;
  if (p.has_mean != 0) p.mean_new.at[channel] = dot * factor;
  if (p.has_variance != 0) p.variance_new.at[channel] = sum;
}
