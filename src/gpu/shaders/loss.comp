// NegativeLogLikelihoodLoss and its gradient.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint LOSS = 0;      // one group computes the sum or mean over all targets
const uint EACH = 1;      // each invocation computes the loss of one target
const uint WEIGHTS = 2;   // one group computes the sum of the weights of all targets
const uint GRADIENT = 3;  // each invocation computes one element of the gradient of x

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Labels { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements y, x;          // x: log-probabilities; in the gradient, dy
  Labels labels;
  Elements weights;       // a weight per class; null: no weights
  Elements total;         // sum of the weights, for the gradient of a mean
  Fault fault;            // set to the error number `site` if a label is not a class
  uint site;
  uint label_words;       // 32-bit words per label: 1 or 2
  uint targets, classes, positions;
  uint has_weights, ignores;
  int ignored;
  uint mean, each;        // gradient only: mean: the loss was a mean; each: dy has an element per target
} p;

// Returns the class of a target; -1 if it is ignored or invalid.
int label_of(uint target) {
  const int label = p.labels.at[target * p.label_words];
  const bool is_short = p.label_words == 1 || p.labels.at[target * 2 + 1] == (label < 0 ? -1 : 0);
  if (p.ignores != 0 && is_short && label == p.ignored) return -1;
  if (is_short && label >= 0 && label < int(p.classes)) return label;
  p.fault.site = p.site;
  return -1;
}
float weight_of(int label) { return label < 0 ? 0 : p.has_weights != 0 ? p.weights.at[label] : 1; }
float loss_of(uint target, int label) {
  if (label < 0) return 0;
  return -p.x.at[(target / p.positions * p.classes + uint(label)) * p.positions + target % p.positions] * weight_of(label);
}

void main() {
  const uint own = gl_LocalInvocationIndex;
  if (KIND == EACH) {
    const uint target = element_index();
    if (target < p.targets) p.y.at[target] = loss_of(target, label_of(target));
    return;
  }
  if (KIND == GRADIENT) {
    const uint element = element_index();
    if (element >= p.targets * p.classes) return;
    const uint position = element % p.positions, of = element / p.positions % p.classes, image = element / (p.positions * p.classes);
    const uint target = image * p.positions + position;
    const int label = label_of(target);
    float d = 0;
    if (label == int(of)) d = -p.x.at[p.each != 0 ? target : 0] * weight_of(label) / (p.mean != 0 ? p.total.at[0] : 1);
    p.y.at[element] = d;
    return;
  }
  float sum = 0, weights = 0;
  for (uint target = own; target < p.targets; target += 256) {
    const int label = label_of(target);
    if (KIND == LOSS) sum += loss_of(target, label);
    weights += weight_of(label);
  }
  sum = over_group(sum);
  weights = over_group(weights);
  if (own == 0) p.y.at[0] = KIND == WEIGHTS ? weights : p.mean != 0 ? sum / weights : sum;
}
