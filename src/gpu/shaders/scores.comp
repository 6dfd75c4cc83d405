// Results of classifiers and regressors from rows of scores: adds base values, selects a label, and transforms the scores. Each invocation
// computes one row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "scores.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint KIND = 0;
const uint REGRESSION = 0, TREES = 1, LINEAR = 2;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Labels { uvec2 at[]; };  // labels of 64 bits

const uint HAS_Y = 1, WIDE_Y = 2, HAS_LABELS = 4, PROBABILITIES = 8, ONLY_FIRST = 16, ONLY_SECOND = 32;

layout(push_constant, scalar) uniform Push {
  Elements scores;       // shape [rows, stride]; overwritten
  Elements base;
  Floats y;              // shape [rows, columns]
  Elements wide_y;       // y accessed as float64; if WIDE_Y
  Labels labels, chosen; // labels of the model; the label selected for each row
  uint flags;
  uint rows, stride, count, columns;
  uint base_count;       // 0: no base values; 1: one value for all scores; otherwise one per score
  uint label_count;      // 0: the labels are the class indices
} p;

bool has(uint flag) { return (p.flags & flag) != 0; }

void main() {
  const uint row = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (row >= p.rows) return;
  const uint first = row * p.stride;
  for (uint k = 0; k < p.count && p.base_count > 0; ++k) p.scores.at[first + k] += p.base.at[p.base_count == 1 ? 0 : k];
  const NUMBER score = p.scores.at[first];
  uint label = score > 0 ? 1 : 0;
  bool is_plain = false;  // true: the label is a number, not an index into `labels`
  if (KIND == REGRESSION) {
    transform_row(p.scores, first, p.count);
  } else if (p.count == 1 && KIND == LINEAR && p.columns == 2) {
    write_pair(p.scores, first, true, score);
  } else if (p.count == 1) {
    is_plain = KIND == TREES || p.label_count != 1 || label == 0;
    if (!is_plain) label = 0;
    transform_row(p.scores, first, 1);
  } else if (has(ONLY_FIRST)) {
    label = score > (has(PROBABILITIES) ? NUMBER(0.5) : NUMBER(0)) ? 1 : 0;
    write_pair(p.scores, first, has(PROBABILITIES), score);
  } else {
    label = place_of_largest(p.scores, first, p.count);
    if (has(ONLY_SECOND)) label = p.scores.at[first + 1] > (has(PROBABILITIES) ? NUMBER(0.5) : NUMBER(0)) ? 1 : 0;
    transform_row(p.scores, first, p.count);
  }
  if (has(HAS_LABELS)) p.chosen.at[row] = !is_plain && label < p.label_count ? p.labels.at[label] : uvec2(label, 0);
  for (uint k = 0; k < p.columns && has(HAS_Y); ++k) {
    if (has(WIDE_Y))
      p.wide_y.at[row * p.columns + k] = p.scores.at[first + k];
    else
      p.y.at[row * p.columns + k] = float(p.scores.at[first + k]);
  }
}
