// One step of an RNN, GRU or LSTM in one direction. Each invocation computes one unit of one sequence.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;  // a number of kernels::RnnKind
const uint RNN = 0, GRU = 1, LSTM = 2;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Lengths { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

const uint HAS_BIAS = 1, HAS_LENGTHS = 2, HAS_H = 4, HAS_C = 8, HAS_Y = 16, REVERSE = 32, RESET_LAST = 64, ONLY_RESET = 128;

layout(push_constant, scalar) uniform Push {
  Elements gates;    // products of X and W: [steps, batch, gates, hidden]
  Elements r, bias;
  Lengths lengths;
  Fault fault;       // receives `site` if a length is not in [0, steps]
  Elements h_in, h_out, c_in, c_out, y;  // without RESET_LAST, a GRU's c is the reset state, which ONLY_RESET writes
  uint flags, site;
  uint step, steps, batch, hidden;
  uint y_step;       // distance in elements between steps of y
} p;

bool has(uint flag) { return (p.flags & flag) != 0; }
float sigmoid(float x) { return 1 / (1 + exp(-x)); }
// Drivers may compute tanh(x) by exp(2 x), which overflows for large x.
float tanh_of(float x) { return tanh(clamp(x, -15.0, 15.0)); }

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
  const float h = has(HAS_H) ? p.h_in.at[element] : 0, c = has(HAS_C) && KIND == LSTM ? p.c_in.at[element] : 0;
  if (p.step >= count) {  // this sequence has ended
    if (has(ONLY_RESET)) return;
    p.h_out.at[element] = h;
    if (KIND == LSTM) p.c_out.at[element] = c;
    if (has(HAS_Y)) p.y.at[p.step * p.y_step + element] = 0;
    return;
  }
  const uint time = has(REVERSE) ? count - 1 - p.step : p.step;
  const uint row = (time * p.batch + sequence) * gates * p.hidden + unit;
  float of_x[4], of_h[4];
  for (uint gate = 0; gate < gates; ++gate) {
    const bool from_reset = KIND == GRU && gate == 2 && !has(RESET_LAST);
    float sum = 0;
    if (has(HAS_H) && !(from_reset && has(ONLY_RESET)))
      for (uint k = 0; k < p.hidden; ++k) {
        const uint at = sequence * p.hidden + k;
        sum = fma(p.r.at[(gate * p.hidden + unit) * p.hidden + k], from_reset ? p.c_in.at[at] : p.h_in.at[at], sum);
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
    next = tanh_of(of_x[0] + of_h[0]);
  } else if (KIND == GRU) {
    const float update = sigmoid(of_x[0] + of_h[0]), reset = sigmoid(of_x[1] + of_h[1]);
    if (has(ONLY_RESET)) {
      p.c_out.at[element] = reset * h;
      return;
    }
    const float candidate = tanh_of(of_x[2] + (has(RESET_LAST) ? reset * of_h[2] : of_h[2]));
    next = (1 - update) * candidate + update * h;
  } else {
    const float cell = sigmoid(of_x[2] + of_h[2]) * c + sigmoid(of_x[0] + of_h[0]) * tanh_of(of_x[3] + of_h[3]);
    next = sigmoid(of_x[1] + of_h[1]) * tanh_of(cell);
    p.c_out.at[element] = cell;
  }
  p.h_out.at[element] = next;
  if (has(HAS_Y)) p.y.at[time * p.y_step + element] = next;
}
