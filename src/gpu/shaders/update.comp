// Updates of parameters and of a trainer's state. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"
#include "rates.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint OF_ROWS = 0;  // 1: the gradient has only some rows of the parameter; other rows stay unchanged
// These numbers are the same as in UpdateKind in gpu/update.cpp.
const uint MOMENTUM = 0, ADAGRAD = 1, ADAM = 2, ADAM_UPDATE = 3, RMSPROP = 4, LION = 5, ACCUMULATE = 6, AVERAGE = 7, ASSIGN = 8;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Bits { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements x_new, v_new, h_new;  // the new parameter and its new states
  Elements x, g, v, h;
  Bits rate, number;             // R (learning rate); T (update count) in 64 bits
  Fault fault;                   // set to the error number `site` if T is invalid or a row index is out of range
  uint site;
  uint wide_rate;                // 1: R is float64
  uint count;
  float a, b, c, d, e;           // numbers whose meaning depends on KIND, see below
  Bits places;                   // if OF_ROWS: row in the parameter of each gradient row, in 64 bits; -1: unused
  uint width, rows;              // if OF_ROWS: elements per row; rows of the parameter
} p;

float rate() { return p.wide_rate != 0 ? narrowed(p.rate.at[0], p.rate.at[1]) : uintBitsToFloat(p.rate.at[0]); }
float number() { return float(p.number.at[0]) + 4294967296.0 * float(int(p.number.at[1])); }

void main() {
  uint i = element_index();
  if (i >= p.count) return;
  const float g = p.g.at[i];
  if (OF_ROWS != 0) {
    const uint row = i / p.width, place = p.places.at[2 * row];
    if (p.places.at[2 * row + 1] == 0xFFFFFFFFu) return;
    if (p.places.at[2 * row + 1] != 0 || place >= p.rows) {
      p.fault.site = p.site;
      return;
    }
    i = place * p.width + i % p.width;
  }
  if (KIND == ACCUMULATE) p.x_new.at[i] = p.x.at[i] + p.a * g;
  if (KIND == AVERAGE) p.x_new.at[i] = p.x.at[i] + p.a * (g - p.x.at[i]);
  if (KIND == ASSIGN) p.x_new.at[i] = g;
  // a: factor of the old momentum, b: factor of the gradient after the first update, c: norm_coefficient, d: 1 for Nesterov.
  if (KIND == MOMENTUM) {
    const float x = p.x.at[i], gradient = p.c * x + g;
    const float momentum = p.a * p.v.at[i] + (number() > 0 ? p.b : 1) * gradient;
    p.x_new.at[i] = x - rate() * (p.d != 0 ? gradient + p.a * momentum : momentum);
    p.v_new.at[i] = momentum;
  }
  if (KIND == ADAGRAD) {  // a: decay, b: epsilon, c: norm_coefficient
    const float x = p.x.at[i], gradient = p.c * x + g, squares = p.v.at[i] + gradient * gradient;
    p.x_new.at[i] = x - rate() / (1 + number() * p.a) * gradient / (sqrt(squares) + p.b);
    p.v_new.at[i] = squares;
  }
  if (KIND == LION) {  // a, b: betas, c: weight decay
    const float v = p.v.at[i], direction = p.a * v + (1 - p.a) * g;
    const float turn = direction > 0 ? 1 : direction < 0 ? -1 : direction;  // keeps NaN
    p.x_new.at[i] = (1 - rate() * p.c) * p.x.at[i] - rate() * turn;
    p.v_new.at[i] = p.b * v + (1 - p.b) * g;
  }
  if (KIND == RMSPROP) {  // a: smoothing, b: momentum, c: epsilon, d: weight decay
    const float x = p.x.at[i], gradient = g + p.d * x, squares = p.a * p.v.at[i] + (1 - p.a) * gradient * gradient;
    const float velocity = p.b * p.h.at[i] + gradient / (sqrt(squares) + p.c);
    p.x_new.at[i] = x - rate() * velocity;
    p.v_new.at[i] = squares;
    p.h_new.at[i] = velocity;
  }
  // a, b: logarithms of alpha and beta, c: epsilon, d: norm_coefficient, e: norm_coefficient_post. The host computes the logarithms,
  // because those of numbers near 1 may be inaccurate on devices.
  if (KIND == ADAM) {
    const float x = p.x.at[i], gradient = p.d * x + g;
    const float mean = p.v.at[i] + complement(p.a) * (gradient - p.v.at[i]);
    const float squares = p.h.at[i] + complement(p.b) * (gradient * gradient - p.h.at[i]);
    const float n = number();
    const float scale = n > 0 ? sqrt(complement(n * p.b)) / complement(n * p.a) : 1;
    p.x_new.at[i] = (1 - p.e) * (x - rate() * scale * mean / (sqrt(squares) + p.c));
    p.v_new.at[i] = mean;
    p.h_new.at[i] = squares;
  }
  if (KIND == ADAM_UPDATE) {  // a, b: logarithms of the betas, c: epsilon, d: weight decay, e: 1 for decoupled decay
    const float n = number(), x = p.x.at[i];
    if (n < 1) p.fault.site = p.site;
    const float one_less_a = complement(p.a), one_less_b = complement(p.b);
    const float gradient = p.e != 0 ? g : g + p.d * x;
    const float mean = p.v.at[i] + one_less_a * (gradient - p.v.at[i]), squares = p.h.at[i] + one_less_b * (gradient * gradient - p.h.at[i]);
    const float step = mean / complement(n * p.a) / (sqrt(squares / complement(n * p.b)) + p.c);
    p.x_new.at[i] = (p.e != 0 ? 1 - rate() * p.d : 1) * x - rate() * step;
    p.v_new.at[i] = mean;
    p.h_new.at[i] = squares;
  }
}
