// Gradients of normalizations of rows, and of softmax. The gradient of x may be in the memory of dy or x, so all sums are computed before
// it is written.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint SOFTMAX = 0;        // a group computes a row: dx = y (dy - sum(y dy)), where y is passed as x
const uint STATISTICS = 1;     // a group computes, for a row, its mean, 1 / deviation, and the means of dy scale and dy scale xhat
const uint COLUMNS = 2;        // a group computes, for 256 elements of a row, the sums of dy xhat and of dy over all rows
// An invocation computes an element: dx = (dy scale - mean(dy scale) - xhat mean(dy scale xhat)) / deviation.
const uint NORMALIZATION = 3;

layout(push_constant, scalar) uniform Push {
  Elements dx, dy, x, scale;
  Elements dscale, dbias;  // null if not wanted
  Elements statistics;     // four numbers per row, from the pass STATISTICS
  uint rows, extent;
  uint has_dscale, has_dbias;
  uint centered;           // 0: without subtracting the mean (RMSNormalization)
  float epsilon;
} p;

void write_row_of_softmax() {
  const uint row = group_index(), own = gl_LocalInvocationIndex;
  if (row >= p.rows) return;
  float sum = 0;
  for (uint k = own; k < p.extent; k += 256) sum += p.x.at[row * p.extent + k] * p.dy.at[row * p.extent + k];
  sum = over_group(sum);
  for (uint k = own; k < p.extent; k += 256) {
    const uint at = row * p.extent + k;
    p.dx.at[at] = p.x.at[at] * (p.dy.at[at] - sum);
  }
}

void write_statistics() {
  const uint row = group_index(), own = gl_LocalInvocationIndex, start = row * p.extent;
  if (row >= p.rows) return;
  float mean = 0, squares = 0, sum = 0, dot = 0;
  if (p.centered != 0) {
    for (uint k = own; k < p.extent; k += 256) mean += p.x.at[start + k];
    mean = over_group(mean) / float(p.extent);
  }
  for (uint k = own; k < p.extent; k += 256) {
    const float x = p.x.at[start + k] - mean, d = p.dy.at[start + k] * p.scale.at[k];
    squares += x * x;
    sum += d;
    dot += d * x;
  }
  const float factor = 1 / sqrt(over_group(squares) / float(p.extent) + p.epsilon);
  sum = over_group(sum) / float(p.extent);
  dot = over_group(dot) / float(p.extent);
  if (own != 0) return;
  p.statistics.at[4 * row] = mean;
  p.statistics.at[4 * row + 1] = factor;
  p.statistics.at[4 * row + 2] = p.centered != 0 ? sum : 0;
  p.statistics.at[4 * row + 3] = dot * factor;
}

void write_columns() {
  const uint k = element_index();
  if (k >= p.extent) return;
  float dscale = 0, dbias = 0, scale_block = 0, bias_block = 0;  // sums 64 terms at a time, then these sums, for accuracy
  for (uint row = 0; row < p.rows; ++row) {
    const float d = p.dy.at[row * p.extent + k];
    scale_block += d * (p.x.at[row * p.extent + k] - p.statistics.at[4 * row]) * p.statistics.at[4 * row + 1];
    bias_block += d;
    if (row % 64 != 63 && row + 1 != p.rows) continue;
    dscale += scale_block, dbias += bias_block;
    scale_block = bias_block = 0;
  }
  if (p.has_dscale != 0) p.dscale.at[k] = dscale;
  if (p.has_dbias != 0) p.dbias.at[k] = dbias;
}

void write_element() {
  const uint at = element_index();
  if (at >= p.rows * p.extent) return;
  const uint row = at / p.extent;
  const float factor = p.statistics.at[4 * row + 1], xhat = (p.x.at[at] - p.statistics.at[4 * row]) * factor;
  p.dx.at[at] = (p.dy.at[at] * p.scale.at[at % p.extent] - p.statistics.at[4 * row + 2] - xhat * p.statistics.at[4 * row + 3]) * factor;
}

void main() {
  if (KIND == SOFTMAX) write_row_of_softmax();
  if (KIND == STATISTICS) write_statistics();
  if (KIND == COLUMNS) write_columns();
  if (KIND == NORMALIZATION) write_element();
}
