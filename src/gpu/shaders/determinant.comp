// Det: Gaussian elimination with partial pivoting. A group of invocations computes the determinant of a matrix and overwrites the matrix.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Matrices { NUMBER at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y;
  Matrices x;
  uint matrices, extent;
} p;

shared NUMBER largest[256];
shared uint rows[256];

void wait() {
  memoryBarrierBuffer();
  barrier();
}

void main() {
  const uint matrix = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex, m = p.extent;
  if (matrix >= p.matrices) return;
  const uint start = matrix * m * m;
  NUMBER result = NUMBER(1);
  for (uint step = 0; step < m; ++step) {
    NUMBER best = NUMBER(-1);
    uint row = step;
    for (uint r = step + own; r < m; r += 256) {
      const NUMBER x = abs(p.x.at[start + r * m + step]);
      if (x > best || isnan(x)) best = x, row = r;
    }
    largest[own] = best;
    rows[own] = row;
    barrier();
    for (uint reach = 128; reach > 0; reach /= 2) {
      if (own < reach && (largest[own + reach] > largest[own] || isnan(largest[own + reach])))
        largest[own] = largest[own + reach], rows[own] = rows[own + reach];
      barrier();
    }
    row = rows[0];
    const NUMBER pivot = p.x.at[start + row * m + step];
    wait();
    result *= row == step ? pivot : -pivot;
    if (pivot == NUMBER(0)) break;  // the same for all invocations of the group
    if (row != step)
      for (uint k = step + own; k < m; k += 256) {
        const NUMBER upper = p.x.at[start + step * m + k];
        p.x.at[start + step * m + k] = p.x.at[start + row * m + k];
        p.x.at[start + row * m + k] = upper;
      }
    wait();
    const uint left = m - step - 1;
    for (uint i = own; i < left * left; i += 256) {
      const uint r = step + 1 + i / left, k = step + 1 + i % left;
      p.x.at[start + r * m + k] -= p.x.at[start + r * m + step] / pivot * p.x.at[start + step * m + k];
    }
    wait();
  }
  if (own == 0) p.y.at[matrix] = to_element(result);
}
