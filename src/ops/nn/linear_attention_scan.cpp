// Writes LinearAttention as a Scan over the tokens. Unlike the gradient kernel, this Scan can be differentiated.
#include <string>
#include <utility>

#include "ops/gradients.h"
#include "ops/nn/linear_attention.h"
#include "ops/step_body.h"

namespace treadle::ops {
namespace {

class AttentionScan {
 public:
  AttentionScan(GradientContext& g, std::span<const ValueId> inputs)
      : g_(g),
        heads_(heads_of(g.attributes())),
        window_(window_of(g.attributes())),
        gated_(rule() == UpdateRule::gated || rule() == UpdateRule::gated_delta),
        delta_(rule() == UpdateRule::delta || rule() == UpdateRule::gated_delta),
        key_(of_heads(inputs[kKey], inputs[kKey], heads_.kv)),
        value_(of_heads(inputs[kValue], inputs[kValue], heads_.kv)),
        past_(inputs[kPast]) {
    query_ = queries(inputs[kQuery]);
    if (gated_) decay_ = of_heads(inputs[kDecay], inputs[kQuery], heads_.kv);
    if (delta_) beta_ = of_heads(inputs[kBeta], inputs[kQuery], heads_.kv);
  }

  /// Adds the Scan and the nodes around it. Returns the output and the present state.
  std::vector<ValueId> write() {
    std::vector<ValueId> operands{initial_state(), query_, key_, value_};
    if (gated_) operands.push_back(decay_);
    if (delta_) operands.push_back(beta_);
    const std::string name = g_.node().name + "/tokens";
    StepBody body(g_.graph(), g_.type(key_).dtype, name);
    const int64_t scanned = static_cast<int64_t>(operands.size()) - 1;
    std::vector<ValueId> outputs = step(body);
    const int num_outputs = static_cast<int>(outputs.size());
    const std::vector<ValueId> made = body.finish({.op_type = "Scan",
                                                   .inputs = std::move(operands),
                                                   .attributes = {{"num_scan_inputs", scanned}},
                                                   .name = name,
                                                   .num_outputs = num_outputs},
                                                  std::move(outputs));
    const ValueId output = g_.op("Reshape", {g_.transpose(made[1], {1, 0, 2, 3, 4}), g_.ints({0, 0, -1})});
    return {output, window_ > 0 ? last_states(made[2]) : made[0]};
  }

 private:
  UpdateRule rule() const { return update_rule_of(g_.attributes()); }
  ValueId extent(ValueId of, int64_t axis, int64_t count = 1) { return g_.op("Shape", {of}, {{"start", axis}, {"end", axis + count}}); }
  ValueId joined(std::vector<ValueId> extents) { return g_.op("Concat", std::move(extents), {{"axis", int64_t{0}}}); }

  /// Transposes x [batch, length, heads * size] to [length, batch, heads, size]. @param tokens  a value whose first two extents are batch
  /// and length
  ValueId of_heads(ValueId x, ValueId tokens, int64_t heads) {
    return g_.transpose(g_.op("Reshape", {x, joined({extent(tokens, 0, 2), g_.ints({heads, -1})})}), {1, 0, 2, 3});
  }
  /// Returns the scaled queries [length, batch, heads of keys, queries per head, size], where queries that read the same key are adjacent.
  ValueId queries(ValueId x) {
    ValueId query = of_heads(x, x, heads_.q);
    const float scale = g_.attributes().get_float("scale", 0);
    if (scale != 0)
      query = g_.mul(query, g_.scalar(scale, query));
    else
      query =
          g_.op("Div", {query, g_.op("Sqrt", {g_.op("Cast", {extent(key_, 3)}, {{"to", static_cast<int64_t>(g_.type(query).dtype)}})})});
    if (heads_.q >= heads_.kv) return g_.op("Reshape", {query, g_.ints({0, 0, heads_.kv, heads_.q / heads_.kv, -1})});
    query = g_.op("Expand", {g_.op("Unsqueeze", {query, g_.ints({3})}), g_.ints({1, 1, 1, heads_.kv / heads_.q, 1})});
    return g_.op("Reshape", {query, g_.ints({0, 0, heads_.kv, 1, -1})});
  }
  ValueId state_shape() { return joined({extent(key_, 1, 3), extent(value_, 3)}); }
  ValueId initial_state() {
    if (past_ == kNoValue) return g_.op("Expand", {g_.scalar(0, key_), state_shape()});
    const ValueId last = window_ > 0 ? g_.op("Gather", {past_, g_.constant(Tensor::scalar(window_ - 1))}, {{"axis", int64_t{0}}}) : past_;
    return g_.op("Reshape", {last, state_shape()});
  }
  /// Returns the last `window` of the states [length, ...], preceded by zeros if there are fewer states.
  ValueId last_states(ValueId states) {
    const ValueId zeros = g_.op("Expand", {g_.scalar(0, key_), joined({g_.ints({window_}), state_shape()})});
    const ValueId all = g_.op("Concat", {zeros, states}, {{"axis", int64_t{0}}});
    return g_.op("Slice", {all, extent(states, 0), g_.op("Shape", {all}, {{"end", int64_t{1}}}), g_.ints({0})});
  }

  /// Returns what one step of the Scan outputs: the state [batch, heads, key, value] after the token, the row read from this state and, if
  /// there is a window, the state a second time, to be stacked.
  std::vector<ValueId> step(StepBody& body) {
    ValueId state = body.formal("state");
    const ValueId query = body.formal("query"), key = body.formal("key"), value = body.formal("value");
    const ValueId decay = gated_ ? body.formal("decay") : kNoValue, beta = delta_ ? body.formal("beta") : kNoValue;
    const auto row = [&](ValueId x) { return body.op("Unsqueeze", {x, body.ints({-2})}); };
    const auto column = [&](ValueId x) { return body.op("Unsqueeze", {x, body.ints({-1})}); };
    if (gated_) state = body.mul(state, body.op("Exp", {column(decay)}));
    ValueId added = row(value);
    if (delta_) added = body.mul(body.op("Sub", {added, body.op("MatMul", {row(key), state})}), column(beta));
    state = body.add(state, body.mul(column(key), added));
    std::vector<ValueId> outputs{state, body.op("MatMul", {query, state})};
    if (window_ > 0) outputs.push_back(body.op("Identity", {state}));
    return outputs;
  }

  GradientContext& g_;
  const Heads heads_;
  const int64_t window_;
  const bool gated_, delta_;
  const ValueId key_, value_, past_;
  ValueId query_ = kNoValue, decay_ = kNoValue, beta_ = kNoValue;
};

}  // namespace

std::vector<ValueId> linear_attention_as_scan(GradientContext& g, std::span<const ValueId> inputs) {
  return AttentionScan(g, inputs).write();
}

}  // namespace treadle::ops
