// Support vector machines. Each invocation computes one row: a label and scores from the margins of the row or, for a regression, the
// result from the sum.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "scores.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint KIND = 0;
// How results are computed: a regression, linear scores, margins of pairs of classes, or probabilities from them.
const uint REGRESSION = 0, LINEAR = 1, MARGINS = 2, COUPLED = 3;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Labels { uvec2 at[]; };

layout(push_constant, scalar) uniform Push {
  Elements margins;         // shape [rows, stride]; linear scores lack rho here
  Elements rho, prob_a, prob_b;
  Elements work;            // scores of the row, and working memory for couple(): [rows, work_stride]
  Floats y;                 // shape [rows, columns]; may be null
  Labels labels, chosen;
  uint rows, stride, work_stride, classes, columns;
  uint label_count, has_y;
  uint one_class;
} p;

// Does the same steps as kernels::pairwise_coupling().
void couple(uint row, uint scores) {
  const uint k = p.classes, r = scores + k, q = r + k * k, qp = q + k * k;
  const NUMBER tiny = NUMBER(1e-7);
  uint pair = 0;
  for (uint i = 0; i < k; ++i)
    for (uint j = i + 1; j < k; ++j, ++pair) {
      const NUMBER wins = logistic(-fma(p.margins.at[row * p.stride + pair], p.prob_a.at[pair], p.prob_b.at[pair]));
      const NUMBER kept = clamp(wins, tiny, 1 - tiny);
      p.work.at[r + i * k + j] = kept;
      p.work.at[r + j * k + i] = 1 - kept;
    }
  for (uint i = 0; i < k; ++i) {
    p.work.at[scores + i] = 1 / NUMBER(k);
    NUMBER own = 0;
    for (uint j = 0; j < k; ++j) {
      if (j == i) continue;
      const NUMBER loses = p.work.at[r + j * k + i];
      own += loses * loses;
      p.work.at[q + i * k + j] = -loses * p.work.at[r + i * k + j];
    }
    p.work.at[q + i * k + i] = own;
  }
  const NUMBER tolerance = NUMBER(0.005) / NUMBER(k);
  for (uint iteration = 0; iteration < max(100u, k); ++iteration) {
    NUMBER pqp = 0, worst = 0;
    for (uint i = 0; i < k; ++i) {
      NUMBER sum = 0;
      for (uint j = 0; j < k; ++j) sum += p.work.at[q + i * k + j] * p.work.at[scores + j];
      p.work.at[qp + i] = sum;
      pqp += p.work.at[scores + i] * sum;
    }
    for (uint i = 0; i < k; ++i) worst = max(worst, abs(p.work.at[qp + i] - pqp));
    if (worst < tolerance) break;
    for (uint i = 0; i < k; ++i) {
      const NUMBER own = p.work.at[q + i * k + i], step = (pqp - p.work.at[qp + i]) / own, shrink = 1 / (1 + step);
      pqp = (pqp + step * (step * own + 2 * p.work.at[qp + i])) * shrink * shrink;
      p.work.at[scores + i] += step;
      for (uint j = 0; j < k; ++j) {
        p.work.at[qp + j] = (p.work.at[qp + j] + step * p.work.at[q + i * k + j]) * shrink;
        p.work.at[scores + j] *= shrink;
      }
    }
  }
}

// Returns the class that wins most pairs, the first one of several. Counts the wins in the memory of the scores.
uint winner(uint row, uint counts) {
  for (uint i = 0; i < p.classes; ++i) p.work.at[counts + i] = 0;
  uint pair = 0;
  for (uint i = 0; i < p.classes; ++i)
    for (uint j = i + 1; j < p.classes; ++j, ++pair) p.work.at[counts + (p.margins.at[row * p.stride + pair] > 0 ? i : j)] += 1;
  return place_of_largest(p.work, counts, p.classes);
}

void main() {
  const uint row = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (row >= p.rows) return;
  const uint scores = row * p.work_stride;
  uint label = 0;
  if (KIND == REGRESSION) {
    NUMBER sum = p.margins.at[row * p.stride];
    if (p.one_class != 0) sum = sum > 0 ? NUMBER(1) : NUMBER(-1);
    p.work.at[scores] = sum;
    transform_row(p.work, scores, 1);
  } else if (KIND == LINEAR) {
    for (uint k = 0; k < p.classes; ++k) p.work.at[scores + k] = p.rho.at[0] + p.margins.at[row * p.stride + k];
    label = place_of_largest(p.work, scores, p.classes);
    transform_row(p.work, scores, p.classes);
  } else {
    label = winner(row, scores);
    if (KIND == COUPLED) {
      couple(row, scores);
      transform_row(p.work, scores, p.classes);
    } else if (p.classes == 2) {
      write_pair(p.work, scores, false, p.margins.at[row * p.stride]);
      if (TRANSFORM == SOFTMAX || TRANSFORM == SOFTMAX_ZERO) transform_row(p.work, scores, 2);
    } else {
      for (uint k = 0; k < p.columns; ++k) p.work.at[scores + k] = p.margins.at[row * p.stride + k];
      transform_row(p.work, scores, p.columns);
    }
  }
  if (KIND != REGRESSION) p.chosen.at[row] = label < p.label_count ? p.labels.at[label] : uvec2(label, 0);
  for (uint k = 0; k < p.columns && p.has_y != 0; ++k) p.y.at[row * p.columns + k] = float(p.work.at[scores + k]);
}
