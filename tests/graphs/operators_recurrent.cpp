// Computes LSTM, GRU and RNN, one sequence and one time step after the other.
#include <algorithm>
#include <cmath>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;
using Row = std::vector<double>;

// The parts that LSTM, GRU and RNN have in common, for one layer.
class Layer {
 public:
  Layer(Call& call, int64_t num_gates) : c(call), gates(num_gates), hidden(call.integer("hidden_size", 0)) {
    const Array &x = c.in(0), &w = c.in(1), &r = c.in(2);
    const std::string direction = c.text("direction", "forward");
    both = direction == "bidirectional";
    backwards = direction == "reverse";
    batch_first = c.integer("layout", 0) != 0;
    require(x.floats() && x.rank() == 3 && w.rank() == 3 && r.rank() == 3 && w.dtype == x.dtype && r.dtype == x.dtype, "X, W, R");
    length = x.dims[batch_first ? 1 : 0];
    batch = x.dims[batch_first ? 0 : 1];
    inputs = x.dims[2];
    const int64_t d = both ? 2 : 1;
    require(w.dims == Dims{d, gates * hidden, inputs} && r.dims == Dims{d, gates * hidden, hidden}, "shapes of W and R");
    require(!c.has(3) || c.in(3).dims == Dims{d, 2 * gates * hidden}, "the shape of B");
    if (c.has(4)) {
      require(c.in(4).dtype == DType::int32 && c.in(4).dims == Dims{batch}, "sequence_lens");
      for (int64_t n : c.in(4).i) require(n >= 1 && n <= length, "a length beyond the sequences'");
    }
    for (size_t i : {size_t{5}, size_t{6}})
      require(!c.has(i) || c.in(i).dims == (batch_first ? Dims{batch, d, hidden} : Dims{d, batch, hidden}), "an initial state's shape");
    const auto* clip = c.attribute("clip");
    limit = clip != nullptr ? clip->f : 0;
    read_functions();
  }

  /// Returns the dtype in which sums and functions are computed: 16-bit floats are widened.
  DType precision() const { return c.in(0).dtype == DType::float64 ? DType::float64 : DType::float32; }
  double term(double value) { return c.noise()(value, precision(), 4); }
  double clip(double x) const { return limit > 0 ? std::clamp(x, -limit, limit) : x; }
  // Returns x W^T for the gate `gate`, with the gate's part of Wb.
  double from_input(int64_t d, int64_t b, int64_t t, int64_t gate, int64_t h) {
    const Array &x = c.in(0), &w = c.in(1);
    Total sum(c.noise(), precision());
    if (c.has(3)) sum.add(c.in(3).f[place({d, gate * hidden + h}, c.in(3).dims)]);
    for (int64_t i = 0; i < inputs; ++i)
      sum.add(x.f[place(batch_first ? Dims{b, t, i} : Dims{t, b, i}, x.dims)] * w.f[place({d, gate * hidden + h, i}, w.dims)]);
    return sum.value();
  }
  // Returns state R^T for the gate `gate`, with the gate's part of Rb.
  double from_state(int64_t d, const Row& state, int64_t gate, int64_t h) {
    const Array& r = c.in(2);
    Total sum(c.noise(), precision());
    if (c.has(3)) sum.add(c.in(3).f[place({d, (gates + gate) * hidden + h}, c.in(3).dims)]);
    for (int64_t i = 0; i < hidden; ++i) sum.add(state[static_cast<size_t>(i)] * r.f[place({d, gate * hidden + h, i}, r.dims)]);
    return sum.value();
  }
  // In runs that simulate rounding errors, rounds intermediate results to float32, because a gate may then become exactly 1.
  double rounded_on_the_way(double x) { return c.noise().on() ? round_to(precision(), x) : x; }
  /// Applies the function with this index of a direction's cell.
  double apply(int64_t d, int64_t index, double x) {
    const Function& f = functions[static_cast<size_t>(d * per_direction() + index)];
    return rounded_on_the_way(term(value_of(f, clip(x))));
  }
  int64_t per_direction() const { return gates == 4 ? 3 : gates == 3 ? 2 : 1; }
  Row initial(size_t input, int64_t d, int64_t b) {
    Row row(static_cast<size_t>(hidden), 0);
    if (c.has(input))
      for (int64_t h = 0; h < hidden; ++h)
        row[static_cast<size_t>(h)] = c.in(input).f[place(batch_first ? Dims{b, d, h} : Dims{d, b, h}, c.in(input).dims)];
    return row;
  }

  /// Computes the layer. `step(direction, batch, time, states)` changes the states, the first of which is the output.
  template <typename F>
  Values run(size_t num_states, F step) {
    const DType dtype = c.in(0).dtype;
    const int64_t directions = both ? 2 : 1;
    Array y(dtype, batch_first ? Dims{batch, length, directions, hidden} : Dims{length, directions, batch, hidden});
    Values results{y};
    for (size_t s = 0; s < num_states; ++s)
      results.emplace_back(Array(dtype, batch_first ? Dims{batch, directions, hidden} : Dims{directions, batch, hidden}));
    for (int64_t d = 0; d < directions; ++d) {
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t count = c.has(4) ? c.in(4).i[static_cast<size_t>(b)] : length;
        std::vector<Row> states;
        for (size_t s = 0; s < num_states; ++s) states.push_back(initial(5 + s, d, b));
        for (int64_t n = 0; n < count; ++n) {
          const int64_t t = backwards || d == 1 ? count - 1 - n : n;
          step(d, b, t, states);
          for (int64_t h = 0; h < hidden; ++h)
            results[0].array.set(place(batch_first ? Dims{b, t, d, h} : Dims{t, d, b, h}, y.dims), rounded(states[0], h));
        }
        for (size_t s = 0; s < num_states; ++s)
          for (int64_t h = 0; h < hidden; ++h)
            results[s + 1].array.set(place(batch_first ? Dims{b, d, h} : Dims{d, b, h}, results[s + 1].array.dims), rounded(states[s], h));
      }
    }
    return results;
  }

  struct Function {
    std::string name;
    double alpha, beta;
  };

  // Reads the activation functions. The lists activation_alpha and activation_beta only have elements for functions with such a parameter.
  void read_functions() {
    const int64_t directions = both ? 2 : 1;
    const auto *names = c.attribute("activations"), *alphas = c.attribute("activation_alpha"), *betas = c.attribute("activation_beta");
    size_t next_alpha = 0, next_beta = 0;
    for (int64_t i = 0; i < directions * per_direction(); ++i) {
      const bool is_gate = i % per_direction() == 0 && gates > 1;
      Function f{is_gate ? "Sigmoid" : "Tanh", 0, 0};
      if (names != nullptr) f.name = names->strings.at(static_cast<size_t>(i));
      const bool hard = f.name == "HardSigmoid";
      if (hard || f.name == "LeakyRelu" || f.name == "Elu") {
        f.alpha = round_to(DType::float32, hard ? 0.2 : f.name == "Elu" ? 1 : 0.01);
        if (alphas != nullptr && next_alpha < alphas->floats.size()) f.alpha = alphas->floats[next_alpha++];
      }
      if (hard) {
        f.beta = 0.5;
        if (betas != nullptr && next_beta < betas->floats.size()) f.beta = betas->floats[next_beta++];
      }
      functions.push_back(f);
    }
  }
  double value_of(const Function& f, double x) {
    if (f.name == "Sigmoid") return 1 / rounded_on_the_way(1 + std::exp(-x));
    if (f.name == "Tanh") return std::tanh(x);
    if (f.name == "Relu") return std::max(x, 0.0);
    if (f.name == "LeakyRelu") return x < 0 ? f.alpha * x : x;
    if (f.name == "Elu") return x < 0 ? f.alpha * std::expm1(x) : x;
    if (f.name == "HardSigmoid") return std::clamp(f.alpha * x + f.beta, 0.0, 1.0);
    if (f.name == "Softsign") return x / (1 + std::fabs(x));
    throw Invalid("an activation that the interpreter does not know");
  }

  Call& c;
  std::vector<Function> functions;
  int64_t gates, hidden, length = 0, batch = 0, inputs = 0;
  bool both = false, backwards = false, batch_first = false;
  double limit = 0;

 private:
  double rounded(const Row& row, int64_t h) { return c.noise()(row[static_cast<size_t>(h)], c.in(0).dtype, 2); }
};

Values lstm(Call& c) {
  Layer layer(c, 4);
  if (c.has(7)) require(c.in(7).dims == Dims{c.in(1).dims[0], 3 * layer.hidden}, "the shape of P");
  auto peephole = [&](int64_t d, int64_t gate, int64_t h, const Row& cell) {
    return c.has(7) ? layer.term(c.in(7).f[place({d, gate * layer.hidden + h}, c.in(7).dims)] * cell[static_cast<size_t>(h)]) : 0;
  };
  const bool coupled = c.integer("input_forget", 0) != 0;
  return layer.run(2, [&](int64_t d, int64_t b, int64_t t, std::vector<Row>& states) {
    const Row output = states[0], cell = states[1];
    Row next = cell;
    auto sum = [&](int64_t gate, int64_t h) { return layer.from_input(d, b, t, gate, h) + layer.from_state(d, output, gate, h); };
    for (int64_t h = 0; h < layer.hidden; ++h) {
      const double in = layer.apply(d, 0, sum(0, h) + peephole(d, 0, h, cell));
      const double forget = coupled ? 1 - in : layer.apply(d, 0, sum(2, h) + peephole(d, 2, h, cell));
      const double fresh = layer.apply(d, 1, sum(3, h));
      next[static_cast<size_t>(h)] = layer.term(forget * cell[static_cast<size_t>(h)]) + layer.term(in * fresh);
    }
    for (int64_t h = 0; h < layer.hidden; ++h) {
      const double out = layer.apply(d, 0, sum(1, h) + peephole(d, 1, h, next));
      states[0][static_cast<size_t>(h)] = out * layer.apply(d, 2, next[static_cast<size_t>(h)]);
    }
    states[1] = next;
  });
}

Values gru(Call& c) {
  Layer layer(c, 3);
  const bool linear = c.integer("linear_before_reset", 0) != 0;
  return layer.run(1, [&](int64_t d, int64_t b, int64_t t, std::vector<Row>& states) {
    const Row before = states[0];
    Row update = before, reset = before, chosen = before;
    for (int64_t h = 0; h < layer.hidden; ++h) {
      const auto at = static_cast<size_t>(h);
      update[at] = layer.apply(d, 0, layer.from_input(d, b, t, 0, h) + layer.from_state(d, before, 0, h));
      reset[at] = layer.apply(d, 0, layer.from_input(d, b, t, 1, h) + layer.from_state(d, before, 1, h));
      chosen[at] = reset[at] * before[at];
    }
    for (int64_t h = 0; h < layer.hidden; ++h) {
      const auto at = static_cast<size_t>(h);
      const double state = linear ? reset[at] * layer.from_state(d, before, 2, h) : layer.from_state(d, chosen, 2, h);
      const double fresh = layer.apply(d, 1, layer.from_input(d, b, t, 2, h) + state);
      states[0][at] = layer.term((1 - update[at]) * fresh) + layer.term(update[at] * before[at]);
    }
  });
}

Values rnn(Call& c) {
  Layer layer(c, 1);
  return layer.run(1, [&](int64_t d, int64_t b, int64_t t, std::vector<Row>& states) {
    const Row before = states[0];
    for (int64_t h = 0; h < layer.hidden; ++h)
      states[0][static_cast<size_t>(h)] = layer.apply(d, 0, layer.from_input(d, b, t, 0, h) + layer.from_state(d, before, 0, h));
  });
}

const OperatorTable kTable{
    {"LSTM", lstm},
    {"GRU", gru},
    {"RNN", rnn},
};

}  // namespace

const OperatorTable& recurrent_operators() { return kTable; }

}  // namespace treadle::graphs
