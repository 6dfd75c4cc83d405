// LinearAttention: what the operator and its gradient have in common.
#pragma once

#include <algorithm>

#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::ops {

enum LinearAttentionInput : int { kQuery, kKey, kValue, kPast, kDecay, kBeta };

enum class UpdateRule : uint8_t { linear, gated, delta, gated_delta };

struct Heads {
  int64_t q, kv;
  int64_t outputs() const { return std::max(q, kv); }  // of the kind that there are more of, each reads one of the other
};

/// What the operator and its gradient bind alike: inputs 0 to 5 of both are the operator's.
struct LinearAttentionPlan {
  int64_t batch, length, key_size, value_size, window;
  Heads heads;
  UpdateRule rule;
  float scale;
  bool has_past, decay_per_key, beta_per_head;
  DType state_dtype;

  static LinearAttentionPlan make(const BindContext& c);
  int64_t slots() const { return std::max<int64_t>(window, 1); }
  bool gated() const { return rule == UpdateRule::gated || rule == UpdateRule::gated_delta; }
  bool delta() const { return rule == UpdateRule::delta || rule == UpdateRule::gated_delta; }
};

}  // namespace treadle::ops
