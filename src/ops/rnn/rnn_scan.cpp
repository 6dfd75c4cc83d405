// Writes RNN, GRU and LSTM as a Scan over the time steps. Unlike the gradient kernels, this Scan can be differentiated.
#include <string>
#include <utility>

#include "graph/scalar_function.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/rnn/rnn.h"
#include "ops/step_body.h"

namespace treadle::ops {
namespace {

using kernels::RnnDirection;
using kernels::RnnKind;
using kernels::RnnParams;
using enum RnnInput;

class RecurrentScan {
 public:
  /// @param inputs  X to P, in the order of the operators' inputs
  RecurrentScan(GradientContext& g, RnnKind kind, std::span<const ValueId> inputs)
      : g_(g), p_(params_of_attributes(kind, g.attributes())), inputs_(inputs.begin(), inputs.begin() + kP + 1) {
    if (p_.batch_first) inputs_[kX] = g_.transpose(inputs_[kX], {1, 0, 2});
    const int64_t gates = p_.num_directions() * p_.gates();
    // Reshapes weights and biases so that axis 0 has one index per gate and direction.
    for (RnnInput weights : {kW, kR}) inputs_[weights] = g_.op("Reshape", {inputs_[weights], g_.ints({gates, -1, 0})});
    if (has(kB)) inputs_[kB] = g_.op("Reshape", {inputs_[kB], g_.ints({2 * gates, -1})});
    if (has(kP)) inputs_[kP] = g_.op("Reshape", {inputs_[kP], g_.ints({3 * p_.num_directions(), -1})});
  }

  /// Adds the Scans of all directions. Returns Y, Y_h and, for LSTM, Y_c.
  std::vector<ValueId> write() {
    std::vector<ValueId> ys, states[2];
    const int64_t state_axis = p_.batch_first ? 1 : 0;
    for (int d = 0; d < p_.num_directions(); ++d) {
      const std::vector<ValueId> made = direction(d);
      for (size_t i = 0; i < num_states(); ++i) states[i].push_back(g_.op("Unsqueeze", {made[i], g_.ints({state_axis})}));
      ys.push_back(g_.op("Unsqueeze", {made.back(), g_.ints({1})}));
    }
    std::vector<ValueId> outputs{g_.op("Concat", std::move(ys), {{"axis", int64_t{1}}})};
    if (p_.batch_first) outputs[0] = g_.transpose(outputs[0], {2, 0, 1, 3});
    for (size_t i = 0; i < num_states(); ++i) outputs.push_back(g_.op("Concat", std::move(states[i]), {{"axis", state_axis}}));
    return outputs;
  }

 private:
  bool has(RnnInput input) const { return inputs_[input] != kNoValue; }
  size_t num_states() const { return p_.kind == RnnKind::lstm ? 2 : 1; }
  ValueId row(RnnInput input, int64_t at, int64_t axis = 0) {
    return g_.op("Gather", {inputs_[input], g_.constant(Tensor::scalar(at))}, {{"axis", axis}});
  }
  ValueId extent(ValueId of, int64_t axis) { return g_.op("Shape", {of}, {{"start", axis}, {"end", axis + 1}}); }

  ValueId initial_state(RnnInput input, int d) {
    if (has(input)) return row(input, d, p_.batch_first ? 1 : 0);
    const ValueId shape = g_.op("Concat", {extent(inputs_[kX], 1), extent(inputs_[kR], 2)}, {{"axis", int64_t{0}}});
    return g_.op("Expand", {g_.scalar(0, inputs_[kX]), shape});
  }
  /// Returns true if a GRU applies the reset gate after the matrix product. The gate then multiplies the candidate's recurrent bias, too,
  /// so this bias must not be added to the input's bias.
  bool has_bias_apart() const { return p_.kind == RnnKind::gru && p_.linear_before_reset && has(kB); }
  ValueId bias(int d, int64_t gate, bool recurrent) { return row(kB, (2 * d + (recurrent ? 1 : 0)) * p_.gates() + gate); }
  /// Returns what the inputs of all steps contribute to a gate: the product with W, plus biases.
  ValueId share_of_input(int d, int64_t gate) {
    const ValueId product = g_.op("MatMul", {inputs_[kX], g_.transpose(row(kW, d * p_.gates() + gate), {1, 0})});
    if (!has(kB)) return product;
    const bool last = gate == p_.gates() - 1;
    const ValueId of_input = bias(d, gate, false);
    return g_.add(product, last && has_bias_apart() ? of_input : g_.add(of_input, bias(d, gate, true)));
  }
  ValueId times() {
    const ValueId steps = g_.op("Squeeze", {extent(inputs_[kX], 0)});
    const ValueId each = g_.op("Range", {g_.constant(Tensor::scalar<int64_t>(0)), steps, g_.constant(Tensor::scalar<int64_t>(1))});
    return g_.op("Cast", {each}, {{"to", static_cast<int64_t>(DType::int32)}});
  }

  /// Adds the Scan of one direction. Returns the final states and all outputs [steps, batch, hidden].
  std::vector<ValueId> direction(int d) {
    const bool reverse = p_.direction == RnnDirection::reverse || d == 1;
    std::vector<ValueId> operands{initial_state(kInitialH, d)};
    if (num_states() == 2) operands.push_back(initial_state(kInitialC, d));
    for (int64_t gate = 0; gate < p_.gates(); ++gate) operands.push_back(share_of_input(d, gate));
    if (has(kSequenceLens)) operands.push_back(times());
    const size_t scanned = operands.size() - num_states();
    const std::string name = g_.node().name + "/steps";
    StepBody body(g_.graph(), g_.type(inputs_[kX]).dtype, name);
    std::vector<ValueId> outputs = step(body, d);
    return body.finish({.op_type = "Scan",
                        .inputs = std::move(operands),
                        .attributes = {{"num_scan_inputs", static_cast<int64_t>(scanned)},
                                       {"scan_input_directions", std::vector<int64_t>(scanned, reverse ? 1 : 0)},
                                       {"scan_output_directions", std::vector<int64_t>{reverse ? 1 : 0}}},
                        .name = name,
                        .num_outputs = static_cast<int>(num_states() + 1)},
                       std::move(outputs));
  }

  /// Writes one time step. Returns the states after the step, and its output.
  std::vector<ValueId> step(StepBody& body, int d) {
    std::vector<ValueId> before{body.formal("h")}, x;
    if (num_states() == 2) before.push_back(body.formal("c"));
    for (int64_t gate = 0; gate < p_.gates(); ++gate) x.push_back(body.formal("x"));
    const ValueId time = has(kSequenceLens) ? body.formal("time") : kNoValue;
    std::vector<ValueId> after = p_.kind == RnnKind::lstm  ? lstm_cell(body, d, x, before[0], before[1])
                                 : p_.kind == RnnKind::gru ? gru_cell(body, d, x, before[0])
                                                           : rnn_cell(body, d, x, before[0]);
    ValueId y = after[0];
    if (time != kNoValue) {  // past a sequence's end: keep the state, output 0
      const ValueId active = body.op("Unsqueeze", {body.op("Less", {time, body.capture(inputs_[kSequenceLens])}), body.ints({1})});
      y = body.op("Where", {active, y, body.number(0)});
      for (size_t i = 0; i < after.size(); ++i) after[i] = body.op("Where", {active, after[i], before[i]});
    }
    after.push_back(y);
    return after;
  }

  ValueId times_recurrent(StepBody& body, int d, int64_t gate, ValueId h) {
    return body.op("MatMul", {h, body.capture(g_.transpose(row(kR, d * p_.gates() + gate), {1, 0}))});
  }
  ValueId activate(StepBody& body, int d, int which, ValueId x) const {
    if (p_.clip > 0) x = body.op("Clip", {x, body.number(-p_.clip), body.number(p_.clip)});
    const kernels::RnnActivation& activation = p_.activations[d][which];
    switch (activation.function) {
      case kernels::Unary::affine: return body.add(body.mul(body.number(activation.a), x), body.number(activation.b));
      case kernels::Unary::scaled_tanh:
        return body.mul(body.number(activation.a), body.op("Tanh", {body.mul(body.number(activation.b), x)}));
      default: break;
    }
    const std::vector<std::string>& names = g_.attributes().get_strings("activations");
    const size_t per_direction = names.size() / static_cast<size_t>(p_.num_directions());
    const std::string usual = activation.function == kernels::Unary::sigmoid ? "Sigmoid" : "Tanh";
    const ScalarFunction& function =
        *find_function_ignoring_case(names.empty() ? usual : names[static_cast<size_t>(d) * per_direction + static_cast<size_t>(which)]);
    Attributes attributes;
    if (!function.a.name.empty()) attributes.set(function.a.name, activation.a);
    if (!function.b.name.empty()) attributes.set(function.b.name, activation.b);
    return body.op(function.op_type.empty() ? function.name : function.op_type, {x}, std::move(attributes));
  }

  std::vector<ValueId> rnn_cell(StepBody& body, int d, const std::vector<ValueId>& x, ValueId h) {
    return {activate(body, d, 0, body.add(x[0], times_recurrent(body, d, 0, h)))};
  }
  std::vector<ValueId> gru_cell(StepBody& body, int d, const std::vector<ValueId>& x, ValueId h) {
    const ValueId update = activate(body, d, 0, body.add(x[0], times_recurrent(body, d, 0, h)));
    const ValueId reset = activate(body, d, 0, body.add(x[1], times_recurrent(body, d, 1, h)));
    ValueId last;
    if (p_.linear_before_reset) {
      last = times_recurrent(body, d, 2, h);
      if (has_bias_apart()) last = body.add(last, body.capture(bias(d, 2, true)));
      last = body.mul(reset, last);
    } else {
      last = times_recurrent(body, d, 2, body.mul(reset, h));
    }
    const ValueId candidate = activate(body, d, 1, body.add(x[2], last));
    return {body.add(body.mul(body.op("Sub", {body.number(1), update}), candidate), body.mul(update, h))};
  }
  // Writes an LSTM cell. The gates are in the order i, o, f, c, the peepholes in the order i, o, f.
  std::vector<ValueId> lstm_cell(StepBody& body, int d, const std::vector<ValueId>& x, ValueId h, ValueId c) {
    auto gate = [&](int64_t at, int which, ValueId seen) {
      ValueId sum = body.add(x[static_cast<size_t>(at)], times_recurrent(body, d, at, h));
      if (seen != kNoValue && has(kP)) sum = body.add(sum, body.mul(body.capture(row(kP, 3 * d + at)), seen));
      return activate(body, d, which, sum);
    };
    const ValueId input = gate(0, 0, c);
    const ValueId forget = p_.input_forget ? body.op("Sub", {body.number(1), input}) : gate(2, 0, c);
    const ValueId cell = body.add(body.mul(forget, c), body.mul(input, gate(3, 1, kNoValue)));
    const ValueId output = gate(1, 0, cell);
    return {body.mul(output, activate(body, d, 2, cell)), cell};
  }

  GradientContext& g_;
  const RnnParams p_;
  std::vector<ValueId> inputs_;
};

}  // namespace

std::vector<ValueId> recurrent_as_scan(GradientContext& g, RnnKind kind, std::span<const ValueId> inputs) {
  return RecurrentScan(g, kind, inputs).write();
}

}  // namespace treadle::ops
