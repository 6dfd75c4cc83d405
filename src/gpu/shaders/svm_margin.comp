// Support vector machines. Each invocation computes the margin between two classes for a row or, for a regression, the sum for a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Elements margins;       // shape [rows, margin_stride]
  Elements similarities;  // shape [rows, stride]
  Elements coefficients;  // shape [classes - 1, vectors]
  Elements rho;           // one number per pair of classes
  Words starts;           // first vector of each class, then the number of vectors; null for one class
  uint rows, pairs, classes, vector_count, stride, margin_stride;
} p;

// The terms nearly cancel. So in float, the rounding errors of the sum are summed, too, and added at the end.
NUMBER sum = 0, error = 0;
void add_product(NUMBER a, NUMBER b) {
#if defined(ELEMENT_F64)
  sum = fma(a, b, sum);
#else
  precise float product = a * b;
  precise float lost = fma(a, b, -product);
  precise float next = sum + product;
  precise float kept = next - sum;
  precise float rest = (sum - (next - kept)) + (product - kept);
  sum = next;
  error += lost + rest;
#endif
}

void add_class(uint row, uint coefficients, uint first, uint end) {
  for (uint v = first; v < end; ++v)
    add_product(p.coefficients.at[coefficients * p.vector_count + v], p.similarities.at[row * p.stride + v]);
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.rows * p.pairs) return;
  const uint row = i / p.pairs, pair = i % p.pairs;
  sum = p.rho.at[pair];
  if (p.classes < 2) {
    add_class(row, 0, 0, p.vector_count);
  } else {
    uint a = 0, before = 0;  // the pairs (a, a + 1), (a, a + 2) ... are consecutive
    while (pair - before >= p.classes - 1 - a) before += p.classes - 1 - a, ++a;
    const uint b = a + 1 + pair - before;
    add_class(row, b - 1, p.starts.at[a], p.starts.at[a + 1]);
    add_class(row, a, p.starts.at[b], p.starts.at[b + 1]);
  }
  p.margins.at[row * p.margin_stride + pair] = sum + error;
}
