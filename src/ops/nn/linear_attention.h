// Helpers for LinearAttention and its gradient.
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
  int64_t outputs() const { return std::max(q, kv); }  // the larger of both numbers: each head of one kind uses a head of the other
};

/// Read the attributes. All three throw Error(invalid_argument) if a value is not allowed.
UpdateRule update_rule_of(const Attributes& attributes);
Heads heads_of(const Attributes& attributes);
/// Returns state_window. Output `present` contains this number of last states, along an additional first axis. 0: only the last state,
/// without that axis.
int64_t window_of(const Attributes& attributes);

/// Writes the operator as a Scan over the tokens, which can be differentiated again. @return output and present state
/// @param inputs  query to beta, as the operator has them; beta has one element per head
std::vector<ValueId> linear_attention_as_scan(GradientContext& g, std::span<const ValueId> inputs);

/// The bound state of LinearAttention and of its gradient. Inputs 0 to 5 of both are those of LinearAttention.
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
