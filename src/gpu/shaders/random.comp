// RandomUniform, RandomNormal, Bernoulli and Multinomial. Each invocation computes two elements from one block of random bits (Multinomial:
// one). The bits are the same as on the host. Compiled for float64, as the host computes, and for float32, for devices without float64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"
#include "philox.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint UNIFORM = 0, NORMAL = 1, BERNOULLI = 2;
const uint CUMULATE = 3, DRAW = 4;  // Multinomial: CUMULATE sums probabilities along each row, then DRAW selects classes
layout(constant_id = 1) const uint IS_WIDE = 0;  // 1: y and x are float64; 0: float32

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y;  // output; cast to Floats if it is float32 in the float64 build, and to Ints for Multinomial's class indices
  Elements x;  // input: probabilities (Bernoulli) or their logarithms (Multinomial); cast to Floats like y
  Elements sums;  // running sums of each row's probabilities, from CUMULATE; shape [rows, classes]
  uvec2 key, stream;
  NUMBER offset, scale;  // at a multiple of 8 bytes, as a float64 requires
  uint count;            // number of elements of y; if CUMULATE, number of rows
  uint classes, samples, is_long;
} p;

NUMBER given(uint i) {
#if defined(ELEMENT_F64)
  if (IS_WIDE == 0) return NUMBER(Floats(p.x).at[i]);
#endif
  return p.x.at[i];
}
void store(uint i, NUMBER value) {
#if defined(ELEMENT_F64)
  if (IS_WIDE == 0) {
    Floats(p.y).at[i] = float(value);
    return;
  }
#endif
  p.y.at[i] = value;
}

// Returns a number in [0, 1) from 53 random bits.
NUMBER number_of(uint high, uint low) {
#if defined(ELEMENT_F64)
  return (NUMBER(high >> 11) * 4294967296.0LF + NUMBER(high << 21 | low >> 11)) * 1.1102230246251565404e-16LF;
#else
  return NUMBER(high >> 8) * (1.0 / 16777216.0);
#endif
}
NUMBER uniform_of(uint element) {
  const uvec4 bits = random_bits(element / 2, p.stream, p.key);
  return (element & 1u) == 0 ? number_of(bits.x, bits.y) : number_of(bits.z, bits.w);
}

// Returns the cosine and sine of a fraction in [0, 1) of a turn, from Taylor series after reducing the angle to an eighth of a turn.
#if defined(ELEMENT_F64)
#define PAIR dvec2
#define EIGHTH 0.785398163397448309615660845819876LF
#else
#define PAIR vec2
#define EIGHTH 0.785398163397448
#endif
PAIR turned(NUMBER part) {
  const uint octant = uint(part * NUMBER(8));
  const NUMBER rest = part * NUMBER(8) - NUMBER(octant), angle = EIGHTH * ((octant & 1u) != 0 ? NUMBER(1) - rest : rest);
  const NUMBER square = angle * angle;
  NUMBER sine = NUMBER(1), cosine = NUMBER(1);
  for (int i = 18; i > 0; i -= 2) {
    sine = NUMBER(1) - sine * square / NUMBER(i * (i + 1));
    cosine = NUMBER(1) - cosine * square / NUMBER(i * (i - 1));
  }
  sine *= angle;
  const bool swapped = octant == 1 || octant == 2 || octant == 5 || octant == 6;
  return (swapped ? PAIR(sine, cosine) : PAIR(cosine, sine)) * PAIR(octant > 1 && octant < 6 ? -1 : 1, octant > 3 ? -1 : 1);
}

void cumulate(uint row) {
  NUMBER largest = given(row * p.classes), total = NUMBER(0);
  for (uint i = 1; i < p.classes; ++i) {
    const NUMBER x = given(row * p.classes + i);
    largest = x > largest ? x : largest;
  }
  for (uint i = 0; i < p.classes; ++i) p.sums.at[row * p.classes + i] = total += exp_of(given(row * p.classes + i) - largest);
}

void draw(uint element) {
  const uint start = element / p.samples * p.classes;
  const NUMBER point = uniform_of(element) * p.sums.at[start + p.classes - 1];
  uint low = 0, high = p.classes - 1;  // the first sum that exceeds the random number is in [low, high]
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (p.sums.at[start + middle] > point)
      high = middle;
    else
      low = middle + 1;
  }
  Ints y = Ints(p.y);
  if (p.is_long == 0) {
    y.at[element] = int(low);
  } else {
    y.at[2 * element] = int(low);
    y.at[2 * element + 1] = 0;
  }
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (KIND == CUMULATE) {
    if (i < p.count) cumulate(i);
    return;
  }
  if (KIND == DRAW) {
    if (i < p.count) draw(i);
    return;
  }
  if (2 * i >= p.count) return;
  const uvec4 bits = random_bits(i, p.stream, p.key);
  PAIR both = PAIR(number_of(bits.x, bits.y), number_of(bits.z, bits.w));
  if (KIND == NORMAL) both = turned(both.y) * sqrt(NUMBER(-2) * log_of(NUMBER(1) - both.x));  // the Box-Muller transform
  for (uint k = 0; k < 2; ++k) {
    const uint element = 2 * i + k;
    if (element >= p.count) return;
    const NUMBER value = k == 0 ? both.x : both.y;
    store(element, KIND == BERNOULLI ? NUMBER(value < given(element) ? 1 : 0) : p.offset + p.scale * value);
  }
}
