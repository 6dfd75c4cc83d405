// DFT and STFT in stages: computes roots of unity, loads lines (1-D signals) of complex numbers, applies Stockham's self-sorting passes,
// and stores the output. Also computes window functions that are sums of cosines.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint STAGE = 0;
const uint ROOTS = 0, LOAD = 1, PASS = 2, STORE = 3, WINDOW = 4;

#if defined(ELEMENT_F64)
#define COMPLEX dvec2
#define EIGHTH 0.785398163397448309615660845819876LF  // an eighth of a turn, in radians
#else
#define COMPLEX vec2
#define EIGHTH 0.785398163397448
#endif
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Complexes { COMPLEX at[]; };

layout(push_constant, scalar) uniform Push {
  Complexes to, from;  // lines of `size` complex numbers
  Complexes roots;     // root m is exp(-2 pi i m / size); for the inverse transform, exp(2 pi i m / size)
  Elements memory;     // LOAD: the input of the node; STORE: its output
  Elements window;     // LOAD: a factor for each element of a line; may be null
  uint count, size;
  // In memory, element k of line i is at i / within * outer_step + i % within * inner_step + k * step.
  uint within, outer_step, inner_step, step;
  uint parts;                   // numbers per element in memory: 1 (real) or 2 (complex)
  uint has_window;
  uint extent;                  // LOAD: input elements per line, padded with zeros to `size`; STORE: output elements per line
  uint mirrored;                // LOAD: 1: the elements are the first half of a real signal's spectrum
  uint radix, rest, done;       // PASS: done * radix * rest = size; `done`: product of the radices of earlier passes
  uint inverse;
  vec3 cosines;                 // WINDOW: factors of 1, cos(2 pi i / size) and cos(4 pi i / size) in element i
} p;

// Returns exp(2 pi i m / n). Integer arithmetic reduces the angle to [0, pi / 4], where Taylor series are as accurate as the number type.
COMPLEX root_of_unity(uint m, uint n) {
  const uint octant = 8 * m / n, left = 8 * m - octant * n;
  const NUMBER angle = EIGHTH * NUMBER((octant & 1u) != 0 ? n - left : left) / NUMBER(n);
  const NUMBER square = angle * angle;
  NUMBER sine = NUMBER(1), cosine = NUMBER(1);
  for (int i = 16; i > 0; i -= 2) {
    sine = NUMBER(1) - sine * square / NUMBER(i * (i + 1));
    cosine = NUMBER(1) - cosine * square / NUMBER(i * (i - 1));
  }
  sine *= angle;
  const bool swapped = octant == 1 || octant == 2 || octant == 5 || octant == 6;
  const COMPLEX root = swapped ? COMPLEX(sine, cosine) : COMPLEX(cosine, sine);
  return root * COMPLEX(octant > 1 && octant < 6 ? -1 : 1, octant > 3 ? -1 : 1);
}
COMPLEX product(COMPLEX a, COMPLEX b) { return COMPLEX(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

uint place(uint line, uint k) { return line / p.within * p.outer_step + line % p.within * p.inner_step + k * p.step; }

COMPLEX loaded(uint line, uint k) {
  bool is_conjugate = false;
  if (p.mirrored != 0 && 2 * k > p.size) k = p.size - k, is_conjugate = true;
  if (k >= p.extent) return COMPLEX(0);
  const uint at = place(line, k);
  COMPLEX x = COMPLEX(to_number(p.memory.at[at]), 0);
  // For the spectrum of a real signal, the imaginary parts at 0 and at half of the length are ignored.
  if (p.parts == 2 && !(p.mirrored != 0 && (k == 0 || 2 * k == p.size))) x.y = to_number(p.memory.at[at + 1]);
  if (is_conjugate) x.y = -x.y;
  return p.has_window != 0 ? x * to_number(p.window.at[k]) : x;
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  if (STAGE == WINDOW) {
    // A symmetric window of one element has period (`size`) 0. Its element is the window's center, where the cosines are -1 and 1.
    const NUMBER once = p.size == 0 ? NUMBER(-1) : root_of_unity(i % p.size, p.size).x;
    const NUMBER twice = p.size == 0 ? NUMBER(1) : root_of_unity(2 * i % p.size, p.size).x;
    p.memory.at[i] = to_element(NUMBER(p.cosines.x) + NUMBER(p.cosines.y) * once + NUMBER(p.cosines.z) * twice);
  } else if (STAGE == ROOTS) {
    const COMPLEX root = root_of_unity(i, p.size);
    p.to.at[i] = COMPLEX(root.x, p.inverse != 0 ? root.y : -root.y);
  } else if (STAGE == LOAD) {
    p.to.at[i] = loaded(i / p.size, i % p.size);
  } else if (STAGE == PASS) {
    // Element q + done * (radix * m + j) is the sum over k of x[q + done * (m + rest * k)] * r^(j k), where r is a root of unity of order
    // radix, times s^(j m), where s is a root of unity of order radix * rest.
    const uint line = i / p.size * p.size, within = i % p.size;
    const uint q = within % p.done, j = within / p.done % p.radix, m = within / p.done / p.radix;
    const uint stride = p.size / p.radix;
    COMPLEX sum = COMPLEX(0);
    uint power = 0;
    for (uint k = 0; k < p.radix; ++k) {
      sum += product(p.from.at[line + q + p.done * (m + p.rest * k)], p.roots.at[power * stride]);
      power += j;
      if (power >= p.radix) power -= p.radix;
    }
    p.to.at[i] = product(sum, p.roots.at[j * m * p.done]);
  } else {
    const uint line = i / p.extent, k = i % p.extent, at = place(line, k);
    const COMPLEX y = p.from.at[line * p.size + k] / (p.inverse != 0 ? NUMBER(p.size) : NUMBER(1));
    p.memory.at[at] = to_element(y.x);
    if (p.parts == 2) p.memory.at[at + 1] = to_element(y.y);
  }
}
