// LinearAttention: what the operator and its gradient have in common.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::ops {

enum LinearAttentionInput : int { kQuery, kKey, kValue, kPast, kDecay, kBeta };

enum class UpdateRule : uint8_t { linear, gated, delta, gated_delta };

struct Heads {
  int64_t q, kv;
  int64_t outputs() const { return std::max(q, kv); }  // of the kind that there are more of, each reads one of the other
};

/// What the attributes say. All three throw Error(invalid_argument) for a value that is not allowed.
UpdateRule update_rule_of(const Attributes& attributes);
Heads heads_of(const Attributes& attributes);
/// States of the last tokens that the operator keeps, along an axis in front of the batch; 0: that of the last one, without such an axis.
int64_t window_of(const Attributes& attributes);

/// Output and present state in operators whose rules are differentiable: a Scan over the tokens.
/// @param inputs  query to beta, as the operator has them, beta for each head
std::vector<ValueId> linear_attention_as_scan(GradientContext& g, std::span<const ValueId> inputs);

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
