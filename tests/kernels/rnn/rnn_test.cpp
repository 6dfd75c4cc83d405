#include "kernels/rnn/rnn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

using test::Random;

double apply(const RnnActivation& f, double x, double clip) {
  if (clip > 0) x = std::min(std::max(x, -clip), clip);
  switch (f.function) {
    case Unary::sigmoid: return 1 / (1 + std::exp(-x));
    case Unary::tanh: return std::tanh(x);
    case Unary::relu: return std::max(x, 0.0);
    case Unary::hard_sigmoid: return std::min(std::max(f.a * x + f.b, 0.0), 1.0);
    case Unary::softsign: return x / (1 + std::abs(x));
    case Unary::affine: return f.a * x + f.b;
    default: return NAN;
  }
}

struct Result {
  std::vector<double> Y, Y_h, Y_c;
};

// Computes ONNX's formulas, element by element.
Result reference(const RnnParams& p, const RnnWeights& w, const RnnData& data) {
  const int64_t D = p.num_directions(), H = p.hidden, G = p.gates(), I = p.input, T = p.steps, N = p.batch;
  Result result{std::vector<double>(T * D * N * H), std::vector<double>(D * N * H), std::vector<double>(D * N * H)};
  auto x = [&](int64_t t, int64_t n, int64_t i) { return double(data.X[(p.batch_first ? n * T + t : t * N + n) * I + i]); };
  auto state = [&](int64_t d, int64_t n, int64_t j) { return (p.batch_first ? n * D + d : d * N + n) * H + j; };
  auto output = [&](int64_t t, int64_t d, int64_t n, int64_t j) {
    return (p.batch_first ? (n * T + t) * D + d : (t * D + d) * N + n) * H + j;
  };
  for (int64_t d = 0; d < D; ++d) {
    const RnnActivation* act = p.activations[d];
    const bool reverse = p.direction == RnnDirection::reverse || d == 1;
    for (int64_t n = 0; n < N; ++n) {
      const int64_t length = data.sequence_lengths ? data.sequence_lengths[n] : T;
      std::vector<double> h(H), c(H);
      for (int64_t j = 0; j < H; ++j) {
        if (data.initial_h) h[j] = data.initial_h[state(d, n, j)];
        if (data.initial_c) c[j] = data.initial_c[state(d, n, j)];
      }
      for (int64_t s = 0; s < length; ++s) {
        const int64_t t = reverse ? length - 1 - s : s;
        auto input = [&](int64_t gate, int64_t j) {
          double sum = w.B ? w.B[d * 2 * G * H + gate * H + j] : 0;
          for (int64_t i = 0; i < I; ++i) sum += w.W[(d * G * H + gate * H + j) * I + i] * x(t, n, i);
          return sum;
        };
        auto recurrent = [&](int64_t gate, int64_t j, const std::vector<double>& from) {
          double sum = w.B ? w.B[d * 2 * G * H + G * H + gate * H + j] : 0;
          for (int64_t i = 0; i < H; ++i) sum += w.R[(d * G * H + gate * H + j) * H + i] * from[i];
          return sum;
        };
        auto peephole = [&](int64_t gate, int64_t j) { return w.P ? double(w.P[d * 3 * H + gate * H + j]) : 0.0; };
        std::vector<double> next = h;
        for (int64_t j = 0; j < H; ++j) {
          if (p.kind == RnnKind::rnn) {
            next[j] = apply(act[0], input(0, j) + recurrent(0, j, h), p.clip);
          } else if (p.kind == RnnKind::gru) {
            const double z = apply(act[0], input(0, j) + recurrent(0, j, h), p.clip);
            double inner;
            if (p.linear_before_reset) {
              inner = apply(act[0], input(1, j) + recurrent(1, j, h), p.clip) * recurrent(2, j, h);
            } else {
              std::vector<double> reset(H);
              for (int64_t i = 0; i < H; ++i) reset[i] = apply(act[0], input(1, i) + recurrent(1, i, h), p.clip) * h[i];
              inner = recurrent(2, j, reset);
            }
            next[j] = (1 - z) * apply(act[1], input(2, j) + inner, p.clip) + z * h[j];
          } else {
            const double i = apply(act[0], input(0, j) + recurrent(0, j, h) + peephole(0, j) * c[j], p.clip);
            const double f = p.input_forget ? 1 - i : apply(act[0], input(2, j) + recurrent(2, j, h) + peephole(2, j) * c[j], p.clip);
            const double g = apply(act[1], input(3, j) + recurrent(3, j, h), p.clip);
            c[j] = f * c[j] + i * g;
            const double o = apply(act[0], input(1, j) + recurrent(1, j, h) + peephole(1, j) * c[j], p.clip);
            next[j] = o * apply(act[2], c[j], p.clip);
          }
        }
        h = next;
        for (int64_t j = 0; j < H; ++j) result.Y[output(t, d, n, j)] = h[j];
      }
      for (int64_t j = 0; j < H; ++j) result.Y_h[state(d, n, j)] = h[j], result.Y_c[state(d, n, j)] = c[j];
    }
  }
  return result;
}

TEST(Rnn, EveryKindAndOptionEqualsTheFormulas) {
  Random random(81);
  for (int round = 0; round < 300; ++round) {
    RnnParams p;
    p.kind = static_cast<RnnKind>(random.integer(0, 2));
    p.direction = static_cast<RnnDirection>(random.integer(0, 2));
    p.steps = random.integer(0, 7), p.batch = random.integer(1, 4), p.input = random.integer(1, 9), p.hidden = random.integer(1, 40);
    p.batch_first = random.coin();
    p.clip = random.integer(0, 3) == 0 ? 0.5f : 0;
    p.linear_before_reset = random.coin();
    p.input_forget = random.integer(0, 3) == 0;
    p.set_default_activations();
    if (random.coin()) {
      const RnnActivation others[] = {{Unary::relu},     {Unary::hard_sigmoid, 0.2f, 0.5f},
                                      {Unary::softsign}, {Unary::affine, 0.5f, 0.1f},
                                      {Unary::tanh},     {Unary::sigmoid}};
      for (auto& direction : p.activations) {
        for (auto& one : direction) one = others[random.integer(0, 5)];
      }
    }
    const int64_t D = p.num_directions(), gh = p.gates() * p.hidden;
    const auto W = random.vector(D * gh * p.input, -0.5, 0.5), R = random.vector(D * gh * p.hidden, -0.3, 0.3),
               B = random.vector(D * 2 * gh), P = random.vector(D * 3 * p.hidden), X = random.vector(p.steps * p.batch * p.input),
               h = random.vector(D * p.batch * p.hidden), c = random.vector(D * p.batch * p.hidden);
    const auto lengths = random.integers<int32_t>(p.batch, 0, p.steps);
    const bool lstm = p.kind == RnnKind::lstm;
    const RnnWeights weights{W.data(), R.data(), random.coin() ? B.data() : nullptr, lstm && random.coin() ? P.data() : nullptr};
    std::vector<float> Y(p.steps * D * p.batch * p.hidden, 9), Y_h(D * p.batch * p.hidden, 9), Y_c(Y_h.size(), 9);
    RnnData data{.X = X.data()};
    if (random.coin()) data.sequence_lengths = lengths.data();
    if (random.coin()) data.initial_h = h.data();
    if (lstm && random.coin()) data.initial_c = c.data();
    data.Y = Y.data(), data.Y_h = Y_h.data(), data.Y_c = lstm ? Y_c.data() : nullptr;
    std::vector<float> packed(packed_rnn_size(p));
    pack_rnn(p, weights, packed.data());
    std::vector<char> scratch(rnn_scratch_bytes(p) + 64);
    rnn(p, packed.data(), data, scratch.data(), nullptr);
    const Result expected = reference(p, weights, data);
    test::expect_near(Y, expected.Y, 2e-5);
    test::expect_near(Y_h, expected.Y_h, 2e-5);
    if (lstm) test::expect_near(Y_c, expected.Y_c, 2e-5);
  }
}

TEST(Rnn, SequenceLengthsOutsideTheStepsAreRefused) {
  RnnParams p{.kind = RnnKind::rnn, .steps = 1, .batch = 1, .input = 1, .hidden = 1};
  p.set_default_activations();
  const float one[] = {1};
  std::vector<float> packed(packed_rnn_size(p));
  pack_rnn(p, {one, one, nullptr, nullptr}, packed.data());
  const int32_t lengths[] = {2};
  std::vector<char> scratch(rnn_scratch_bytes(p));
  EXPECT_THROW(rnn(p, packed.data(), {.X = one, .sequence_lengths = lengths}, scratch.data(), nullptr), Error);
}

}  // namespace
}  // namespace treadle::kernels
