// Attention in one pass over the keys. A group of invocations computes 16 rows: the queries of heads that share keys. While keys are read,
// it keeps each row's largest score and sum of exponentials, and rescales the sums when a larger score comes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint COLUMNS = 16;  // columns of V that an invocation sums up: every 16th column
// The layouts of the operands. 0: [batch, heads, rows, size]. n > 0: the operand is one of n parts of a tensor
// [batch, rows, n, heads, size].
layout(constant_id = 1) const uint Q_PARTS = 0;
layout(constant_id = 2) const uint K_PARTS = 0;
layout(constant_id = 3) const uint V_PARTS = 0;
layout(constant_id = 4) const uint Y_PARTS = 0;
layout(constant_id = 5) const int LEFT = -1;   // LEFT, RIGHT: number of keys before and after it that a query sees; -1: all
layout(constant_id = 6) const int RIGHT = -1;
layout(constant_id = 7) const float SOFTCAP = 0;
layout(constant_id = 8) const uint MASK = 0;         // kind of mask: KEEPS, HIDES or ADDS; 0: no mask
layout(constant_id = 9) const float MASKED = 0;      // the score that replaces those that a boolean mask hides
layout(constant_id = 10) const uint EMPTY_ROWS = 0;  // result if a query sees no key: 0: zeros; 1: NaN; 2: zeros, also if scores are NaN
layout(constant_id = 11) const uint SHOWN = 0;       // which scores to output: qk_matmul_output_mode + 1; 0: none

const uint ROWS = 16, KEYS = 64, DEPTH = 16;
const uint KEEPS = 1, HIDES = 2, ADDS = 3;                                                       // kinds of mask
const uint CAUSAL = 1, MASK_BATCH = 2, MASK_HEADS = 4, MASK_ROWS = 8, MASK_COLUMNS = 16, VALID = 32;  // flags
const uint ONE_BATCH = 64, ONE_HEAD = 128, ONE_QUERY = 256;  // flags: axes where the mask has more indices than Q (ONE_BATCH: also K, V)
const uint RAW = 1, CAPPED = 2, BIASED = 3, PROBABILITIES = 4;
const float NEVER = -1.0 / 0.0;

layout(buffer_reference, scalar, buffer_reference_align = 1) readonly buffer Bytes { uint8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Lengths { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements y, q, k, v;
  Elements past_k, past_v;  // shape [batch, kv heads, past, size]; null if `past` is 0
  Elements mask;            // elements are bytes unless the mask is ADDS
  Lengths valid;            // if VALID: number of keys of each batch, in 64 bits
  Elements shown;           // if SHOWN: the scores to output, [batch, heads, queries, past + keys]
  Fault fault;              // set to the error number `site` if a length in `valid` is out of range
  uint site;
  uint batch, heads;        // heads: upper half: number of query heads; lower half: of key heads
  uint queries, keys, past; // `keys` does not count the past
  uint size, v_size;
  uint mask_length;         // number of keys that the mask covers; later keys are masked
  uint flags;
  float scale;
} p;

shared float q_tile[ROWS][DEPTH + 1], k_tile[KEYS][DEPTH + 1], weights[ROWS][KEYS + 1], parts[ROWS][17];

bool has(uint flag) { return (p.flags & flag) != 0; }

// Returns the index of a row's first element in Q, K, V or Y.
uint row_of(uint batch, uint head, uint row, uint heads, uint rows, uint size, uint parts) {
  return parts != 0 ? ((batch * rows + row) * parts * heads + head) * size : ((batch * heads + head) * rows + row) * size;
}

float larger(float a, float b) { return b > a || isnan(b) ? (isnan(a) ? a : b) : a; }

// Returns the first key that a query sees, and the end of the keys that it sees.
ivec2 visible(uint batch, int query) {
  const int all = int(p.past + p.keys);
  int offset = int(p.past), last = all;
  if (has(VALID)) {
    const int length = p.valid.at[2 * batch];
    if (p.valid.at[2 * batch + 1] != 0 || length < 0 || length > all) p.fault.site = p.site;
    offset = length - int(p.queries);
    last = clamp(length, 0, all);
  }
  const int place = offset + query;
  if (has(CAUSAL)) last = min(last, place + 1);
  if (RIGHT >= 0) last = min(last, place + RIGHT + 1);
  last = min(last, int(p.mask_length));
  const int first = LEFT >= 0 ? clamp(place - LEFT, 0, all) : 0;
  return ivec2(first, max(first, last));
}

float masked(float score, uint batch, uint head, uint query, uint key) {
  if (MASK == 0) return score;
  const uint columns = has(MASK_COLUMNS) ? p.mask_length : 1, rows = has(MASK_ROWS) ? p.queries : 1, heads = has(MASK_HEADS) ? p.heads >> 16 : 1;
  uint at = has(MASK_COLUMNS) ? key : 0;
  if (has(MASK_ROWS)) at += query * columns;
  if (has(MASK_HEADS)) at += head * rows * columns;
  if (has(MASK_BATCH)) at += batch * heads * rows * columns;
  if (MASK != ADDS) return (uint(Bytes(p.mask).at[at]) != 0) == (MASK == KEEPS) ? score : MASKED;
  const float bias = to_number(p.mask.at[at]);
  return bias == NEVER ? NEVER : score + bias;
}

void main() {
  const uint q_heads = p.heads >> 16, kv_heads = p.heads & 0xFFFFu, shared_by = q_heads / kv_heads, rows = shared_by * p.queries;
  const uint tiles = (rows + ROWS - 1) / ROWS, item = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x;
  const uint batch = item / (kv_heads * tiles), kv_head = item / tiles % kv_heads, first_row = item % tiles * ROWS;
  if (batch >= p.batch) return;
  const uint own = gl_LocalInvocationIndex, own_row = own / 16, lane = own % 16, row = first_row + own_row;
  const bool is_row = row < rows;
  const uint head = kv_head * shared_by + (is_row ? row / p.queries : 0), query = is_row ? row % p.queries : 0;
  const uint all = p.past + p.keys;
  const ivec2 seen = is_row ? visible(batch, int(query)) : ivec2(0);
  int begin = SHOWN != 0 ? 0 : int(all), end = SHOWN != 0 ? int(all) : 0;  // range of keys that any of the rows sees; if SHOWN, all keys
  for (uint r = 0; r < ROWS && first_row + r < rows; ++r) {
    const ivec2 other = visible(batch, int((first_row + r) % p.queries));
    if (other.x < other.y) begin = min(begin, other.x), end = max(end, other.y);
  }
  const uint own_batch = has(ONE_BATCH) ? 0 : batch;
  const uint q_at = row_of(own_batch, has(ONE_HEAD) ? 0 : head, has(ONE_QUERY) ? 0 : query, has(ONE_HEAD) ? 1 : q_heads,
                           has(ONE_QUERY) ? 1 : p.queries, p.size, Q_PARTS);
  const uint shown_at = ((batch * q_heads + head) * p.queries + query) * all;
  float sums[COLUMNS];
  for (uint c = 0; c < COLUMNS; ++c) sums[c] = 0;
  float largest = NEVER, total = 0;
  // Probabilities need the sum over all keys. If they are an output, a second pass recomputes the scores and writes the probabilities.
  for (uint pass = 0; pass < (SHOWN == PROBABILITIES ? 2 : 1); ++pass) {
    for (int k0 = begin; k0 < end; k0 += int(KEYS)) {
      float scores[4] = {0, 0, 0, 0};
      for (uint d0 = 0; d0 < p.size; d0 += DEPTH) {
        q_tile[own_row][lane] = is_row && d0 + lane < p.size ? to_number(p.q.at[q_at + d0 + lane]) : 0;
        for (uint j = 0; j < 4; ++j) {
          const uint key = uint(k0) + own_row + 16 * j;
          float value = 0;
          if (key < all && d0 + lane < p.size)
            value = key < p.past ? to_number(p.past_k.at[((batch * kv_heads + kv_head) * p.past + key) * p.size + d0 + lane])
                                 : to_number(p.k.at[row_of(own_batch, kv_head, key - p.past, kv_heads, p.keys, p.size, K_PARTS) + d0 + lane]);
          k_tile[own_row + 16 * j][lane] = value;
        }
        barrier();
        for (uint d = 0; d < DEPTH; ++d)
          for (uint j = 0; j < 4; ++j) scores[j] = fma(q_tile[own_row][d], k_tile[lane + 16 * j][d], scores[j]);
        barrier();
      }
      float own_largest = NEVER;
      for (uint j = 0; j < 4; ++j) {
        const int key = k0 + int(lane + 16 * j);
        const bool is_shown = SHOWN != 0 && is_row && key < int(all);
        float score = scores[j] * p.scale;
        if (SHOWN == RAW && is_shown) p.shown.at[shown_at + key] = to_element(score);
        if (SOFTCAP > 0) score = SOFTCAP * tanh(score / SOFTCAP);
        if (SHOWN == CAPPED && is_shown) p.shown.at[shown_at + key] = to_element(score);
        scores[j] = key >= seen.x && key < seen.y ? masked(score, batch, head, query, uint(key)) : NEVER;
        if (SHOWN == BIASED && is_shown) p.shown.at[shown_at + key] = to_element(scores[j]);
        if (SHOWN == PROBABILITIES && pass == 1 && is_shown)
          p.shown.at[shown_at + key] = to_element(total == 0 ? 0 : exp(scores[j] - largest) / total);
        own_largest = larger(own_largest, scores[j]);
      }
      if (pass == 1) continue;
      parts[own_row][lane] = own_largest;
      barrier();
      float new_largest = largest;
      for (uint i = 0; i < 16; ++i) new_largest = larger(new_largest, parts[own_row][i]);
      barrier();
      const bool none = new_largest == NEVER;  // no key has been seen yet
      const float correction = none ? 1 : exp(largest - new_largest);
      float own_total = 0;
      for (uint j = 0; j < 4; ++j) {
        const float weight = none ? 0 : exp(scores[j] - new_largest);
        weights[own_row][lane + 16 * j] = weight;
        own_total += weight;
      }
      parts[own_row][lane] = own_total;
      barrier();
      total *= correction;
      for (uint i = 0; i < 16; ++i) total += parts[own_row][i];
      largest = new_largest;
      for (uint c = 0; c < COLUMNS; ++c) sums[c] *= correction;
      const uint count = min(KEYS, uint(end - k0));
      for (uint j = 0; j < count; ++j) {
        const uint key = uint(k0) + j;
        const float weight = weights[own_row][j];
        const bool is_past = key < p.past;
        const uint at = is_past ? ((batch * kv_heads + kv_head) * p.past + key) * p.v_size
                                : row_of(own_batch, kv_head, key - p.past, kv_heads, p.keys, p.v_size, V_PARTS);
        for (uint c = 0; c < COLUMNS; ++c) {
          const uint column = lane + 16 * c;
          if (column < p.v_size) sums[c] = fma(weight, is_past ? to_number(p.past_v.at[at + column]) : to_number(p.v.at[at + column]), sums[c]);
        }
      }
      barrier();
    }
  }
  if (!is_row) return;
  const bool is_empty = EMPTY_ROWS == 2 && isnan(total) || total == 0 && (EMPTY_ROWS != 1 || all == 0);
  const uint y_at = row_of(batch, head, query, q_heads, p.queries, p.v_size, Y_PARTS);
  for (uint c = 0; c < COLUMNS; ++c) {
    const uint column = lane + 16 * c;
    if (column < p.v_size) p.y.at[y_at + column] = to_element(is_empty ? 0 : sums[c] / total);
  }
}
