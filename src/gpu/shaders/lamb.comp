// LambUpdate, in three passes. The first computes the states and, for each part of the elements, two sums of squares: of the parameter and
// of the step. The second pass adds up these sums. The third computes the parameter.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"
#include "rates.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint PASS = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Bits { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements x_new, v_new, h_new;  // the new parameter and its new states
  Elements x, g, v, h;
  Elements sums;                 // scratch: sums of squares per part; after PASS 1, first the factor of the rate
  Bits rate, number;             // R (learning rate); T (update count) in 64 bits
  Fault fault;                   // set to the error number `site` if T is less than 1
  uint site;
  uint wide_rate;                // 1: R is float64
  uint count, parts;             // number of elements; number of groups (parts)
  float a, b;                    // logarithms of the two betas
  float epsilon, decay;
} p;

float rate() { return p.wide_rate != 0 ? narrowed(p.rate.at[0], p.rate.at[1]) : uintBitsToFloat(p.rate.at[0]); }
float number() { return float(p.number.at[0]) + 4294967296.0 * float(int(p.number.at[1])); }
float step_of(float x, float mean, float squares, float n) {
  return mean / complement(n * p.a) / (sqrt(squares / complement(n * p.b)) + p.epsilon) + p.decay * x;
}

void main() {
  const float n = number();
  if (n < 1) p.fault.site = p.site;
  if (PASS == 0) {
    if (group_index() >= p.parts) return;
    float lengths = 0, steps = 0;
    for (uint i = element_index(); i < p.count; i += 256 * p.parts) {
      const float x = p.x.at[i], g = p.g.at[i];
      const float mean = p.v.at[i] + complement(p.a) * (g - p.v.at[i]), squares = p.h.at[i] + complement(p.b) * (g * g - p.h.at[i]);
      const float one_step = step_of(x, mean, squares, n);
      p.v_new.at[i] = mean;
      p.h_new.at[i] = squares;
      lengths += x * x;
      steps += one_step * one_step;
    }
    lengths = over_group(lengths);
    steps = over_group(steps);
    if (gl_LocalInvocationIndex != 0) return;
    p.sums.at[2 * group_index()] = lengths;
    p.sums.at[2 * group_index() + 1] = steps;
  }
  if (PASS == 1) {
    float lengths = 0, steps = 0;
    for (uint i = gl_LocalInvocationIndex; i < p.parts; i += 256) {
      lengths += p.sums.at[2 * i];
      steps += p.sums.at[2 * i + 1];
    }
    lengths = over_group(lengths);
    steps = over_group(steps);
    if (gl_LocalInvocationIndex == 0) p.sums.at[0] = lengths > 0 && steps > 0 ? sqrt(lengths) / sqrt(steps) : 1;
  }
  if (PASS == 2) {
    const uint i = element_index();
    if (i >= p.count) return;
    const float x = p.x.at[i];
    p.x_new.at[i] = x - rate() * p.sums.at[0] * step_of(x, p.v_new.at[i], p.h_new.at[i], n);
  }
}
