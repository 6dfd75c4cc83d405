// One time step of an RNN, GRU or LSTM in one direction. Each invocation computes one hidden unit of one sequence.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;  // as numbered in kernels::RnnKind
// The activation functions f, g and h, as numbered in kernels::Unary, and their parameters.
layout(constant_id = 1) const uint F = 5;
layout(constant_id = 2) const float F_A = 0;
layout(constant_id = 3) const float F_B = 0;
layout(constant_id = 4) const uint G = 7;
layout(constant_id = 5) const float G_A = 0;
layout(constant_id = 6) const float G_B = 0;
layout(constant_id = 7) const uint H = 7;
layout(constant_id = 8) const float H_A = 0;
layout(constant_id = 9) const float H_B = 0;
const uint RNN = 0, GRU = 1, LSTM = 2;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Lengths { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

const uint HAS_BIAS = 1, HAS_LENGTHS = 2, HAS_H = 4, HAS_C = 8, HAS_Y = 16, REVERSE = 32, RESET_LAST = 64, ONLY_RESET = 128;
const uint HAS_PEEPHOLES = 256, INPUT_FORGET = 512, BATCH_FIRST = 1024;

layout(push_constant, scalar) uniform Push {
  Elements gates;    // X W^T: [steps, batch, gates, hidden]; if BATCH_FIRST: [batch, steps, gates, hidden]
  Elements r, bias;
  Lengths lengths;
  Fault fault;       // set to the error number `site` if a length is not in [0, steps]
  Elements h_in, h_out, c_in, c_out, y;  // if ONLY_RESET: a GRU's reset * h goes to c_out, which the next dispatch reads as c_in
  Elements peepholes;  // weights of an LSTM's peepholes, in the order i, o, f
  uint flags, site;
  uint step, steps, batch, hidden;
  uint y_step;                 // distance in y, in elements, from step to step
  uint in_stride, out_stride;  // distances in elements from sequence to sequence, in h_in and h_out, and in an LSTM's c_in and c_out
  float clip;                  // bound for the arguments of the activations; 0: no bound
} p;

bool has(uint flag) { return (p.flags & flag) != 0; }
// Bounds x, because drivers may compute tanh(x) from exp(2 x), which overflows for large x.
float tanh_of(float x) { return tanh(clamp(x, -15.0, 15.0)); }

float applied(uint f, float a, float b, float x) {
  if (p.clip > 0) x = clamp(x, -p.clip, p.clip);
  switch (f) {
    case 1: return max(x, 0.0);
    case 3: return x < 0 ? a * x : x;
    case 4: return x > a ? x : 0.0;
    case 5: return 1 / (1 + exp(-x));
    case 6: return clamp(a * x + b, 0.0, 1.0);
    case 7: return tanh_of(x);
    case 8: return a * tanh_of(b * x);
    case 9: return x < 0 ? a * (exp(x) - 1) : x;
    case 12: return max(x, 0.0) + log(1 + exp(-abs(x)));
    case 13: return x / (1 + abs(x));
    case 14: return a * x + b;
  }
  return x;
}
float f_of(float x) { return applied(F, F_A, F_B, x); }
float g_of(float x) { return applied(G, G_A, G_B, x); }
float h_of(float x) { return applied(H, H_A, H_B, x); }

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.batch * p.hidden) return;
  const uint sequence = element / p.hidden, unit = element % p.hidden, gates = KIND == RNN ? 1 : KIND == GRU ? 3 : 4;
  uint count = p.steps;
  if (has(HAS_LENGTHS)) {
    const int given = p.lengths.at[sequence];
    if (given < 0 || given > int(p.steps)) p.fault.site = p.site;
    count = uint(clamp(given, 0, int(p.steps)));
  }
  const uint from = sequence * p.in_stride + unit, to = sequence * p.out_stride + unit;
  const float h = has(HAS_H) ? p.h_in.at[from] : 0, c = has(HAS_C) && KIND == LSTM ? p.c_in.at[from] : 0;
  const uint in_y = sequence * (has(BATCH_FIRST) ? p.steps * p.y_step : p.hidden) + unit;
  if (p.step >= count) {  // the sequence has ended
    if (has(ONLY_RESET)) return;
    p.h_out.at[to] = h;
    if (KIND == LSTM) p.c_out.at[to] = c;
    if (has(HAS_Y)) p.y.at[p.step * p.y_step + in_y] = 0;
    return;
  }
  const uint time = has(REVERSE) ? count - 1 - p.step : p.step;
  const uint row = (has(BATCH_FIRST) ? sequence * p.steps + time : time * p.batch + sequence) * gates * p.hidden + unit;
  float of_x[4], of_h[4];
  for (uint gate = 0; gate < gates; ++gate) {
    const bool from_reset = KIND == GRU && gate == 2 && !has(RESET_LAST);
    float sum = 0;
    if (has(HAS_H) && !(from_reset && has(ONLY_RESET)))
      for (uint k = 0; k < p.hidden; ++k) {
        const float state = from_reset ? p.c_in.at[sequence * p.hidden + k] : p.h_in.at[sequence * p.in_stride + k];
        sum = fma(p.r.at[(gate * p.hidden + unit) * p.hidden + k], state, sum);
      }
    of_x[gate] = p.gates.at[row + gate * p.hidden];
    of_h[gate] = sum;
    if (has(HAS_BIAS)) {
      of_x[gate] += p.bias.at[gate * p.hidden + unit];
      of_h[gate] += p.bias.at[(gates + gate) * p.hidden + unit];
    }
  }
  float next;
  if (KIND == RNN) {
    next = f_of(of_x[0] + of_h[0]);
  } else if (KIND == GRU) {
    const float update = f_of(of_x[0] + of_h[0]), reset = f_of(of_x[1] + of_h[1]);
    if (has(ONLY_RESET)) {
      p.c_out.at[element] = reset * h;
      return;
    }
    const float candidate = g_of(of_x[2] + (has(RESET_LAST) ? reset * of_h[2] : of_h[2]));
    next = (1 - update) * candidate + update * h;
  } else {
    float peepholes[3] = {0, 0, 0};
    if (has(HAS_PEEPHOLES))
      for (uint k = 0; k < 3; ++k) peepholes[k] = p.peepholes.at[k * p.hidden + unit];
    const float opened = f_of(of_x[0] + of_h[0] + peepholes[0] * c);
    const float kept = has(INPUT_FORGET) ? 1 - opened : f_of(of_x[2] + of_h[2] + peepholes[2] * c);
    const float cell = kept * c + opened * g_of(of_x[3] + of_h[3]);
    next = f_of(of_x[1] + of_h[1] + peepholes[1] * cell) * h_of(cell);
    p.c_out.at[to] = cell;
  }
  p.h_out.at[to] = next;
  if (has(HAS_Y)) p.y.at[time * p.y_step + in_y] = next;
}
