// Ensembles of trees. Each invocation follows one tree for one row. If SUM, each invocation instead adds up the votes for one target of a
// row, in the order of the trees.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint SUM = 0;
layout(constant_id = 1) const uint AGGREGATE = 1;  // as numbered in kernels::TreeAggregate
const uint AVERAGE = 0, MINIMUM = 2, MAXIMUM = 3;
const uint MISSING_TRACKS_TRUE = 1u << 31, EQUALS = 1u << 30, FEATURE = EQUALS - 1;  // bits of a node's link, as in kernels::TreeEnsemble

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Elements x;              // shape [rows, columns]
  Words leaves;            // shape [rows, trees]
  Elements scores;         // shape [rows, targets]
  Elements thresholds;
  Words links, roots;      // links: feature and both children of each node; a leaf is its own child
  Words first_vote, targets;
  Elements weights;        // weights of the votes
  uint rows, trees, columns, num_targets;
} p;

uint leaf_of(uint row, uint node) {
  while (true) {
    const uint feature = p.links.at[3 * node];
    const NUMBER x = p.x.at[row * p.columns + (feature & FEATURE)], threshold = p.thresholds.at[node];
    const bool holds = ((feature & EQUALS) != 0 ? x == threshold : x <= threshold) || (feature & MISSING_TRACKS_TRUE) != 0 && isnan(x);
    const uint next = p.links.at[3 * node + (holds ? 1 : 2)];
    if (next == node) return node;
    node = next;
  }
}

NUMBER score_of(uint row, uint target) {
  NUMBER score = 0;
  bool voted = false;
  for (uint tree = 0; tree < p.trees; ++tree) {
    const uint leaf = p.leaves.at[row * p.trees + tree], end = p.first_vote.at[leaf + 1];
    for (uint vote = p.first_vote.at[leaf]; vote < end; ++vote) {
      if (p.targets.at[vote] != target) continue;
      const NUMBER weight = p.weights.at[vote];
      if (AGGREGATE == MINIMUM)
        score = voted && score <= weight ? score : weight;
      else if (AGGREGATE == MAXIMUM)
        score = voted && score >= weight ? score : weight;
      else
        score += weight;
      voted = true;
    }
  }
  if (AGGREGATE == AVERAGE) return score / NUMBER(p.trees);
  return (AGGREGATE == MINIMUM || AGGREGATE == MAXIMUM) && isnan(score) ? NUMBER(0) : score;
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  const uint columns = SUM != 0 ? p.num_targets : p.trees;
  if (i >= p.rows * columns) return;
  if (SUM != 0)
    p.scores.at[i] = score_of(i / columns, i % columns);
  else
    p.leaves.at[i] = leaf_of(i / columns, p.roots.at[i % columns]);
}
