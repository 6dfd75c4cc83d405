// Transforms that ai.onnx.ml operators apply to scores, as in kernels/classical/scores.h.
#include "functions.glsl"

layout(constant_id = 0) const uint TRANSFORM = 0;  // as numbered in kernels::PostTransform
const uint SOFTMAX = 1, LOGISTIC = 2, SOFTMAX_ZERO = 3, PROBIT = 4;

NUMBER logistic(NUMBER x) {
  const NUMBER e = exp_of(-abs(x));
  return (x < 0 ? e : NUMBER(1)) / (1 + e);
}

// Winitzki's approximation. Near 0, log(1 - x^2), and the difference between it and the root, are computed in forms that lose no digits.
NUMBER probit(NUMBER p) {
  const NUMBER a = NUMBER(0.147), x = 2 * p - 1, z = x * x;
  const NUMBER logarithm = z < NUMBER(0.01) ? -z * (1 + z * (NUMBER(0.5) + z * (NUMBER(1) / 3 + z / 4))) : log_of((1 - x) * (1 + x));
  const NUMBER v = 2 / (NUMBER(3.14159265358979324) * a) + NUMBER(0.5) * logarithm, square = -logarithm / a;
  const NUMBER root = sqrt(square / (sqrt(v * v + square) + v));
  return NUMBER(1.41421356237309505) * (x < 0 ? -root : root);
}

// Transforms the scores of a row in place.
void transform_row(Elements scores, uint first, uint count) {
  if (TRANSFORM == PROBIT)
    for (uint i = first; i < first + count; ++i) scores.at[i] = probit(scores.at[i]);
  if (TRANSFORM == LOGISTIC)
    for (uint i = first; i < first + count; ++i) scores.at[i] = logistic(scores.at[i]);
  if (TRANSFORM != SOFTMAX && TRANSFORM != SOFTMAX_ZERO) return;
  NUMBER largest = scores.at[first], sum = 0;
  for (uint i = first; i < first + count; ++i)
    if (scores.at[i] > largest) largest = scores.at[i];
  for (uint i = first; i < first + count; ++i) {
    const NUMBER x = scores.at[i];
    const bool voted = TRANSFORM == SOFTMAX || abs(x) > NUMBER(1e-7);  // SOFTMAX_ZERO keeps scores of 0, which mean "no vote"
    const NUMBER y = voted ? exp_of(x - largest) : x * exp_of(-largest);
    sum += y;
    scores.at[i] = y;
  }
  for (uint i = first; i < first + count; ++i) scores.at[i] = TRANSFORM == SOFTMAX_ZERO && sum == 0 ? NUMBER(0.5) : scores.at[i] / sum;
}

// Writes a row of two scores, from the score of the second class: a probability if `complement` is true, otherwise a margin.
void write_pair(Elements scores, uint first, bool complement, NUMBER score) {
  complement = TRANSFORM == PROBIT || TRANSFORM != LOGISTIC && complement;
  scores.at[first] = complement ? 1 - score : -score;
  scores.at[first + 1] = score;
  if (TRANSFORM == LOGISTIC || TRANSFORM == PROBIT) transform_row(scores, first, 2);
}

uint place_of_largest(Elements scores, uint first, uint count) {
  uint best = 0;
  for (uint i = 1; i < count; ++i)
    if (scores.at[first + best] < scores.at[first + i]) best = i;
  return best;
}
