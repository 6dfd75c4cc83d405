// The gradient of attention, computed from its operands only, in two passes. First, a group of invocations computes dQ of 16 rows (queries
// of heads that share keys), reads the keys twice, and stores three numbers per row for the second pass: the largest score, the sum of
// exponentials, and the sum of P dP. Second (OF_KEYS), a group computes dK and dV of 16 keys and reads the rows once.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint OF_KEYS = 0;
layout(constant_id = 1) const uint COLUMNS = 16;  // features of a head that an invocation sums up: every 16th feature
// The layouts of operands and gradients, as in attention.comp.
layout(constant_id = 2) const uint Q_PARTS = 0;
layout(constant_id = 3) const uint K_PARTS = 0;
layout(constant_id = 4) const uint V_PARTS = 0;
layout(constant_id = 5) const uint Y_PARTS = 0;
layout(constant_id = 6) const uint DQ_PARTS = 0;
layout(constant_id = 7) const uint DK_PARTS = 0;
layout(constant_id = 8) const uint DV_PARTS = 0;
layout(constant_id = 9) const uint MASK = 0;
layout(constant_id = 10) const float MASKED = 0;
layout(constant_id = 11) const uint EMPTY_ROWS = 0;
layout(constant_id = 12) const uint SHOWS_SCORES = 0;

const uint ROWS = 16, OTHERS = 64, DEPTH = 16;
const uint KEEPS = 1, HIDES = 2, ADDS = 3;                                        // kinds of masks
const uint MASK_BATCH = 2, MASK_HEADS = 4, MASK_ROWS = 8, MASK_COLUMNS = 16;      // the flags
const float NEVER = -1.0 / 0.0;

layout(buffer_reference, scalar, buffer_reference_align = 1) readonly buffer Bytes { uint8_t at[]; };

layout(push_constant, scalar) uniform Push {
  Elements dq, dk, dv;
  Elements dscores;      // if SHOWS_SCORES: gradient of the scores, [batch, heads, queries, keys]
  Elements dy, q, k, v;
  Elements mask;         // elements are bytes unless the mask is ADDS
  Elements stats;        // three numbers per row, from the first pass
  uint batch, heads;     // heads: upper half: number of query heads; lower half: of key heads
  uint queries, keys;
  uint size, v_size;
  uint flags;
  float scale;
} p;

shared float a_tile[ROWS][DEPTH + 1], b_tile[OTHERS][DEPTH + 1], weights[ROWS][OTHERS + 1], score_weights[ROWS][OTHERS + 1];
shared float parts[ROWS][17], more_parts[ROWS][17];

uint batch, kv_head;  // the batch and the key head that this group computes
uint q_heads() { return p.heads >> 16; }
uint kv_heads() { return p.heads & 0xFFFFu; }
uint num_rows() { return q_heads() / kv_heads() * p.queries; }
uint head_of(uint row) { return kv_head * (q_heads() / kv_heads()) + row / p.queries; }
uint stats_of(uint row) { return ((batch * q_heads() + head_of(row)) * p.queries + row % p.queries) * 3; }

uint place(uint head, uint row, uint heads, uint rows, uint size, uint in_parts) {
  return in_parts != 0 ? ((batch * rows + row) * in_parts * heads + head) * size : ((batch * heads + head) * rows + row) * size;
}
uint query_place(uint row, uint size, uint in_parts) { return place(head_of(row), row % p.queries, q_heads(), p.queries, size, in_parts); }
uint key_place(uint key, uint size, uint in_parts) { return place(kv_head, key, kv_heads(), p.keys, size, in_parts); }

float of_query(uint row, uint feature, bool scores) {
  if (row >= num_rows() || feature >= (scores ? p.size : p.v_size)) return 0;
  return scores ? p.q.at[query_place(row, p.size, Q_PARTS) + feature] : p.dy.at[query_place(row, p.v_size, Y_PARTS) + feature];
}
float of_key(uint key, uint feature, bool scores) {
  if (key >= p.keys || feature >= (scores ? p.size : p.v_size)) return 0;
  return scores ? p.k.at[key_place(key, p.size, K_PARTS) + feature] : p.v.at[key_place(key, p.v_size, V_PARTS) + feature];
}

// Computes the products Q K^T or dY V^T of a tile: 16 rows or keys from a0 on, times 64 keys or rows from b0 on. An invocation computes
// every 16th product of one row.
float[4] products(uint a0, uint b0, bool scores) {
  const uint own_row = gl_LocalInvocationIndex / 16, lane = gl_LocalInvocationIndex % 16;
  float sums[4] = {0, 0, 0, 0};
  for (uint d0 = 0; d0 < (scores ? p.size : p.v_size); d0 += DEPTH) {
    a_tile[own_row][lane] = OF_KEYS != 0 ? of_key(a0 + own_row, d0 + lane, scores) : of_query(a0 + own_row, d0 + lane, scores);
    for (uint j = 0; j < 4; ++j) {
      const uint other = b0 + own_row + 16 * j;
      b_tile[own_row + 16 * j][lane] = OF_KEYS != 0 ? of_query(other, d0 + lane, scores) : of_key(other, d0 + lane, scores);
    }
    barrier();
    for (uint d = 0; d < DEPTH; ++d)
      for (uint j = 0; j < 4; ++j) sums[j] = fma(a_tile[own_row][d], b_tile[lane + 16 * j][d], sums[j]);
    barrier();
  }
  return sums;
}

bool has(uint flag) { return (p.flags & flag) != 0; }

// Applies the mask to a score. @param is_hidden  set to true if a boolean mask replaces the score, so that it has no gradient
float masked(float score, uint row, uint key, out bool is_hidden) {
  is_hidden = false;
  if (MASK == 0) return score;
  const uint columns = has(MASK_COLUMNS) ? p.keys : 1, rows = has(MASK_ROWS) ? p.queries : 1, heads = has(MASK_HEADS) ? q_heads() : 1;
  uint at = has(MASK_COLUMNS) ? key : 0;
  if (has(MASK_ROWS)) at += row % p.queries * columns;
  if (has(MASK_HEADS)) at += head_of(row) * rows * columns;
  if (has(MASK_BATCH)) at += batch * heads * rows * columns;
  if (MASK == ADDS) return score + p.mask.at[at];
  is_hidden = (uint(Bytes(p.mask).at[at]) != 0) != (MASK == KEEPS);
  return is_hidden ? MASKED : score;
}

float larger(float a, float b) { return b > a || isnan(b) ? (isnan(a) ? a : b) : a; }

float probability(float score, float largest, float total) {
  if (EMPTY_ROWS == 2 && (total == 0 || isnan(total))) return 0;
  return exp(score - largest) / total;
}

void of_rows(uint first_row) {
  const uint own_row = gl_LocalInvocationIndex / 16, lane = gl_LocalInvocationIndex % 16, row = first_row + own_row;
  const bool is_row = row < num_rows();
  float sums[COLUMNS];
  for (uint c = 0; c < COLUMNS; ++c) sums[c] = 0;
  float largest = NEVER, total = 0, dot_product = 0;
  for (uint round = 0; round < 2; ++round) {
    for (uint k0 = 0; k0 < p.keys; k0 += OTHERS) {
      const float scores[4] = products(first_row, k0, true), dp[4] = products(first_row, k0, false);
      float kept[4];
      bool is_hidden[4];
      float own_largest = NEVER;
      for (uint j = 0; j < 4; ++j) {
        const uint key = k0 + lane + 16 * j;
        kept[j] = NEVER;
        is_hidden[j] = true;
        if (is_row && key < p.keys) kept[j] = masked(scores[j] * p.scale, row, key, is_hidden[j]);
        own_largest = larger(own_largest, kept[j]);
      }
      if (round == 0) {
        parts[own_row][lane] = own_largest;
        barrier();
        float new_largest = largest;
        for (uint i = 0; i < 16; ++i) new_largest = larger(new_largest, parts[own_row][i]);
        barrier();
        const bool none = new_largest == NEVER;
        float own_total = 0, own_dot = 0;
        for (uint j = 0; j < 4; ++j) {
          const float weight = none || kept[j] == NEVER ? 0 : exp(kept[j] - new_largest);
          own_total += weight;
          own_dot += weight * dp[j];
        }
        parts[own_row][lane] = own_total;
        more_parts[own_row][lane] = own_dot;
        barrier();
        const float correction = none ? 1 : exp(largest - new_largest);
        total *= correction;
        dot_product *= correction;
        for (uint i = 0; i < 16; ++i) {
          total += parts[own_row][i];
          dot_product += more_parts[own_row][i];
        }
        largest = new_largest;
        barrier();
        continue;
      }
      for (uint j = 0; j < 4; ++j) {
        const uint key = k0 + lane + 16 * j;
        const float weight = is_row && key < p.keys ? probability(kept[j], largest, total) * (dp[j] - dot_product) : 0;
        if (SHOWS_SCORES != 0 && is_row && key < p.keys) p.dscores.at[stats_of(row) / 3 * p.keys + key] = is_hidden[j] ? 0 : weight;
        score_weights[own_row][lane + 16 * j] = is_hidden[j] ? 0 : weight;
      }
      barrier();
      for (uint j = 0; j < min(OTHERS, p.keys - k0); ++j) {
        const uint at = key_place(k0 + j, p.size, K_PARTS);
        for (uint c = 0; c < COLUMNS; ++c) {
          const uint column = lane + 16 * c;
          if (column < p.size) sums[c] = fma(score_weights[own_row][j], p.k.at[at + column], sums[c]);
        }
      }
      barrier();
    }
    if (round == 0) {
      dot_product = EMPTY_ROWS == 2 && (total == 0 || isnan(total)) ? 0 : dot_product / total;
      if (is_row && lane == 0) {
        p.stats.at[stats_of(row)] = largest;
        p.stats.at[stats_of(row) + 1] = total;
        p.stats.at[stats_of(row) + 2] = dot_product;
      }
    }
  }
  if (!is_row) return;
  const uint at = query_place(row, p.size, DQ_PARTS);
  for (uint c = 0; c < COLUMNS; ++c)
    if (lane + 16 * c < p.size) p.dq.at[at + lane + 16 * c] = sums[c] * p.scale;
}

void of_keys(uint first_key) {
  const uint own_row = gl_LocalInvocationIndex / 16, lane = gl_LocalInvocationIndex % 16, key = first_key + own_row, rows = num_rows();
  float dk_sums[COLUMNS], dv_sums[COLUMNS];
  for (uint c = 0; c < COLUMNS; ++c) dk_sums[c] = dv_sums[c] = 0;
  for (uint r0 = 0; r0 < rows; r0 += OTHERS) {
    const float scores[4] = products(first_key, r0, true), dp[4] = products(first_key, r0, false);
    for (uint j = 0; j < 4; ++j) {
      const uint row = r0 + lane + 16 * j;
      float weight = 0, score_weight = 0;
      if (row < rows && key < p.keys) {
        bool is_hidden;
        const float score = masked(scores[j] * p.scale, row, key, is_hidden);
        const uint at = stats_of(row);
        weight = probability(score, p.stats.at[at], p.stats.at[at + 1]);
        score_weight = is_hidden ? 0 : weight * (dp[j] - p.stats.at[at + 2]);
      }
      weights[own_row][lane + 16 * j] = weight;
      score_weights[own_row][lane + 16 * j] = score_weight;
    }
    barrier();
    for (uint j = 0; j < min(OTHERS, rows - r0); ++j) {
      const uint q_at = query_place(r0 + j, p.size, Q_PARTS), dy_at = query_place(r0 + j, p.v_size, Y_PARTS);
      for (uint c = 0; c < COLUMNS; ++c) {
        const uint column = lane + 16 * c;
        if (column < p.size) dk_sums[c] = fma(score_weights[own_row][j], p.q.at[q_at + column], dk_sums[c]);
        if (column < p.v_size) dv_sums[c] = fma(weights[own_row][j], p.dy.at[dy_at + column], dv_sums[c]);
      }
    }
    barrier();
  }
  if (key >= p.keys) return;
  const uint dk_at = key_place(key, p.size, DK_PARTS), dv_at = key_place(key, p.v_size, DV_PARTS);
  for (uint c = 0; c < COLUMNS; ++c) {
    const uint column = lane + 16 * c;
    if (column < p.size) p.dk.at[dk_at + column] = dk_sums[c] * p.scale;
    if (column < p.v_size) p.dv.at[dv_at + column] = dv_sums[c];
  }
}

void main() {
  const uint tiles = ((OF_KEYS != 0 ? p.keys : num_rows()) + ROWS - 1) / ROWS, item = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  batch = item / (kv_heads() * tiles);
  kv_head = item / tiles % kv_heads();
  if (batch >= p.batch) return;
  if (OF_KEYS != 0)
    of_keys(item % tiles * ROWS);
  else
    of_rows(item % tiles * ROWS);
}
