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

/// These three functions read attributes. All throw Error(invalid_argument) for a value that is not allowed.
UpdateRule update_rule_of(const Attributes& attributes);
Heads heads_of(const Attributes& attributes);
/// Returns state_window, the number of latest states in the output `present`, which then has an additional first axis for them. 0:
/// `present` is the last state, without that axis.
int64_t window_of(const Attributes& attributes);

/// Writes the operator as a Scan over the tokens, which can be differentiated again. @return output and present state
/// @param inputs  query to beta, as the operator has them; beta must have one element per head
std::vector<ValueId> linear_attention_as_scan(GradientContext& g, std::span<const ValueId> inputs);

/// The extents and offsets of LinearAttention and of its gradient. Both operators have the same inputs 0 to 5.
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
