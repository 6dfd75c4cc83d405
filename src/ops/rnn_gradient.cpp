// Gradients of RNN, GRU and LSTM: the operators RNNGrad, GRUGrad and LSTMGrad of the treadle domain, and the rules.
#include "kernels/rnn/rnn_gradient.h"

#include <fmt/format.h>

#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/rnn.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::RnnKind;
using kernels::RnnParams;
using enum RnnInput;

// The node's operands, then the gradients of its outputs.
constexpr int kRnnOperands = 8, kDY = 8, kDYh = 9, kDYc = 10;
// Gradients come in this order.
constexpr int kGradientOf[] = {kX, kW, kR, kB, kInitialH, kInitialC, kP};
constexpr int kRnnGradients = 7;

void infer_rnn_grad(InferContext& c) {
  for (int i = 0; i < kRnnGradients; ++i)
    if (c.has_output(i)) {
      if (c.has_input(kGradientOf[i]))
        c.set_output(i, c.input(kGradientOf[i]));
      else
        c.set_output(i, c.dtype(kX), {0});  // nobody reads the gradient of what is not there
    }
}

template <typename T, RnnKind kKind>
struct RecurrentGrad {
  RnnParams params;
  int max_threads;

  static RecurrentGrad bind(BindContext& c) {
    RecurrentGrad k{make_rnn_params(kKind, c.node().attributes, c.shape(kW), c.shape(kR)), c.max_threads()};
    RnnParams& p = k.params;
    const Shape& x = c.shape(kX);
    if (x.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, not 3", x.rank()));
    p.steps = x[p.batch_first ? 1 : 0], p.batch = x[p.batch_first ? 0 : 1];
    check_equal(x[2], p.input, "features of X and W");
    const int64_t directions = p.num_directions(), state = directions * p.batch * p.hidden;
    auto check = [&](int input, int64_t elements, std::string_view what) {
      if (c.has_input(input)) check_equal(c.num_elements(input), elements, what);
    };
    check(kB, directions * 2 * p.gates() * p.hidden, "elements of B");
    check(kSequenceLens, p.batch, "sequence_lens and the batch");
    check(kInitialH, state, "elements of initial_h");
    check(kInitialC, state, "elements of initial_c");
    check(kP, directions * 3 * p.hidden, "elements of P");
    check(kDY, state * p.steps, "elements of the gradient of Y");
    check(kDYh, state, "elements of the gradient of Y_h");
    check(kDYc, state, "elements of the gradient of Y_c");
    c.request_scratch(kernels::rnn_gradient_scratch_bytes<T>(p, c.max_threads()));
    return k;
  }
  void run(RunContext& c) const {
    kernels::RnnGradientData<T> d;
    d.X = c.in<T>(kX), d.W = c.in<T>(kW), d.R = c.in<T>(kR), d.B = c.in<T>(kB), d.P = c.in<T>(kP);
    d.sequence_lengths = c.in<int32_t>(kSequenceLens);
    d.initial_h = c.in<T>(kInitialH), d.initial_c = c.in<T>(kInitialC);
    d.dY = c.in<T>(kDY), d.dY_h = c.in<T>(kDYh), d.dY_c = c.in<T>(kDYc);
    T** const gradients[] = {&d.dX, &d.dW, &d.dR, &d.dB, &d.dinitial_h, &d.dinitial_c, &d.dP};
    for (int i = 0; i < kRnnGradients; ++i) *gradients[i] = c.in<void>(kGradientOf[i]) ? c.out<T>(i) : nullptr;
    kernels::rnn_gradient(params, d, c.scratch<void>(), max_threads, c.pool());
  }
};
template <typename T>
using RnnGradKernel = RecurrentGrad<T, RnnKind::rnn>;
template <typename T>
using GruGradKernel = RecurrentGrad<T, RnnKind::gru>;
template <typename T>
using LstmGradKernel = RecurrentGrad<T, RnnKind::lstm>;

Cost rnn_grad_cost(const ShapeContext& c) {
  const double weights = static_cast<double>(c.num_elements(kW) + c.num_elements(kR));
  const double tokens = static_cast<double>(c.shape(kX)[0] * c.shape(kX)[1]);
  return {6 * weights * tokens, 2 * (c.size_bytes(kX) + c.size_bytes(kW) + c.size_bytes(kR))};
}

OpDef recurrent_grad(std::string_view name, std::vector<KernelDef> kernels) {
  constexpr TypeSet kTypes{DType::float32, DType::float64};
  auto maybe = [&](std::string_view operand) { return Port{operand, kTypes, "T", Presence::optional}; };
  return {.name = name,
          .domain = "treadle",
          .since = {1},
          .inputs = {{"X", kTypes, "T"},
                     {"W", kTypes, "T"},
                     {"R", kTypes, "T"},
                     maybe("B"),
                     {"sequence_lens", TypeSet{DType::int32}, "", Presence::optional},
                     maybe("initial_h"),
                     maybe("initial_c"),
                     maybe("P"),
                     maybe("dY"),
                     maybe("dY_h"),
                     maybe("dY_c")},
          .outputs = {maybe("dX"), maybe("dW"), maybe("dR"), maybe("dB"), maybe("dinitial_h"), maybe("dinitial_c"), maybe("dP")},
          .attributes = {{"activation_alpha"},
                         {"activation_beta"},
                         {"activations"},
                         {"clip"},
                         {"direction", std::string_view("forward")},
                         {"hidden_size"},
                         {"input_forget", int64_t{0}},
                         {"layout", int64_t{0}},
                         {"linear_before_reset", int64_t{0}}},
          .infer = infer_rnn_grad,
          .cost = rnn_grad_cost,
          .kernels = std::move(kernels)};
}

}  // namespace

namespace gradients {
namespace {

Result recurrent(GradientContext& g, RnnKind kind, std::string_view name) {
  const Attributes attributes = g.attributes();
  const Type w = g.type(g.input(kW)), r = g.type(g.input(kR));
  if (w.is_static() && r.is_static()) {
    const RnnParams params = make_rnn_params(kind, attributes, w.static_shape(), r.static_shape());
    for (const auto& direction : params.activations)
      for (const auto& activation : direction)
        if (!kernels::has_rnn_slope(activation.function))
          throw Error(ErrorCode::not_implemented, "there is no derivative of one of its activations");
  }
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < kRnnOperands; ++i) inputs.push_back(g.input(i));
  for (size_t i = 0; i < 3; ++i) inputs.push_back(g.grad_output(i));
  while (inputs.back() == kNoValue) inputs.pop_back();
  const std::vector<ValueId> made = g.op_n(name, std::move(inputs), kRnnGradients, attributes, "treadle");
  Result result(kRnnOperands, kNoValue);
  for (size_t i = 0; i < kRnnGradients; ++i) result[static_cast<size_t>(kGradientOf[i])] = made[i];
  return result;
}

}  // namespace

Result rnn(GradientContext& g) { return recurrent(g, RnnKind::rnn, "RNNGrad"); }
Result gru(GradientContext& g) { return recurrent(g, RnnKind::gru, "GRUGrad"); }
Result lstm(GradientContext& g) { return recurrent(g, RnnKind::lstm, "LSTMGrad"); }

}  // namespace gradients

std::vector<OpDef> rnn_gradient_ops() {
  return {recurrent_grad("RNNGrad", typed<RnnGradKernel, float, double>()),
          recurrent_grad("GRUGrad", typed<GruGradKernel, float, double>()),
          recurrent_grad("LSTMGrad", typed<LstmGradKernel, float, double>())};
}

}  // namespace treadle::ops
