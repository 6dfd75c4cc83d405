// Implements training of RNN, GRU and LSTM. The operators RNNKeeping, GRUKeeping and LSTMKeeping of the treadle domain also output the
// intermediate results of each step, which RNNGrad, GRUGrad and LSTMGrad read.
#include "kernels/rnn/rnn_gradient.h"

#include <fmt/format.h>

#include <string>

#include "graph/infer.h"
#include "graph/layers.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/rnn/rnn.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::RnnKind;
using kernels::RnnParams;
using enum RnnInput;

// The inputs of the gradient operators: the operands of the forward node, its intermediate results, and the gradients of its outputs.
constexpr int kRnnOperands = 8, kKeptInput = 8, kDY = 9, kDYh = 10, kDYc = 11;
// For each output of a gradient operator, the input that it is the gradient of. The gradient of X is the last, because it may be omitted.
constexpr int kGradientOf[] = {kW, kR, kB, kInitialH, kInitialC, kP, kX};
constexpr int kRnnGradients = 7;

template <RnnKind kKind>
void infer_keeping(InferContext& c) {
  infer_recurrent(c, kKind);
  if (!c.has_rank(kX) || !c.has_rank(kR)) return c.set_output_dtype(kKept, c.dtype(kX));
  const RnnParams p = params_of_attributes(kKind, c.attributes());
  const SymbolicShape &x = c.shape(kX), &r = c.shape(kR);
  c.set_output(kKept, c.dtype(kX),
               {p.num_directions(), x[p.batch_first ? 1 : 0] + 1, x[p.batch_first ? 0 : 1], r[2] * kernels::rnn_kept_columns(p)});
}

void infer_rnn_grad(InferContext& c) {
  for (int i = 0; i < kRnnGradients; ++i)
    if (c.has_output(i)) {
      if (c.has_input(kGradientOf[i]))
        c.set_output(i, c.input(kGradientOf[i]));
      else
        c.set_output(i, c.dtype(kX), {0});  // the gradient of an absent operand is unused
    }
}

void check_operand(const BindContext& c, int input, int64_t elements, std::string_view what) {
  if (c.has_input(input)) check_equal(c.num_elements(input), elements, what);
}

/// Returns the parameters for the forward and the backward pass. @throws Error(invalid_argument) if an operand has a wrong size
RnnParams bind_recurrent(const BindContext& c, RnnKind kind) {
  RnnParams p = make_rnn_params(kind, c.node().attributes, c.shape(kW), c.shape(kR));
  const Shape& x = c.shape(kX);
  if (x.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, not 3", x.rank()));
  p.steps = x[p.batch_first ? 1 : 0], p.batch = x[p.batch_first ? 0 : 1];
  check_equal(x[2], p.input, "features of X and W");
  const int64_t directions = p.num_directions(), state = directions * p.batch * p.hidden;
  check_operand(c, kB, directions * 2 * p.gates() * p.hidden, "elements of B");
  check_operand(c, kSequenceLens, p.batch, "sequence_lens and the batch");
  check_operand(c, kInitialH, state, "elements of initial_h");
  check_operand(c, kInitialC, state, "elements of initial_c");
  check_operand(c, kP, directions * 3 * p.hidden, "elements of P");
  return p;
}

template <typename T, RnnKind kKind>
struct RecurrentKeeping {
  RnnParams params;
  int max_threads;

  static RecurrentKeeping bind(BindContext& c) {
    RecurrentKeeping k{bind_recurrent(c, kKind), c.max_threads()};
    c.request_scratch(kernels::rnn_keeping_scratch_bytes<T>(k.params, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    kernels::RnnKeepingData<T> d;
    d.X = c.in<T>(kX), d.W = c.in<T>(kW), d.R = c.in<T>(kR), d.B = c.in<T>(kB), d.P = c.in<T>(kP);
    d.sequence_lengths = c.in<int32_t>(kSequenceLens);
    d.initial_h = c.in<T>(kInitialH), d.initial_c = c.in<T>(kInitialC);
    d.Y = c.out<T>(kY), d.Y_h = c.out<T>(kYh), d.kept = c.out<T>(kKept);
    if (kKind == RnnKind::lstm) d.Y_c = c.out<T>(kYc);
    kernels::rnn_keeping(params, d, c.scratch<void>(), max_threads, c.pool());
  }
};
template <typename T>
using RnnKeepingKernel = RecurrentKeeping<T, RnnKind::rnn>;
template <typename T>
using GruKeepingKernel = RecurrentKeeping<T, RnnKind::gru>;
template <typename T>
using LstmKeepingKernel = RecurrentKeeping<T, RnnKind::lstm>;

template <typename T, RnnKind kKind>
struct RecurrentGrad {
  RnnParams params;
  int max_threads, num_gradients;

  static RecurrentGrad bind(BindContext& c) {
    RecurrentGrad k{bind_recurrent(c, kKind), c.max_threads(), c.has_output(kRnnGradients - 1) ? kRnnGradients : kRnnGradients - 1};
    const RnnParams& p = k.params;
    const int64_t directions = p.num_directions(), state = directions * p.batch * p.hidden;
    check_operand(c, kKeptInput, directions * (p.steps + 1) * p.batch * kernels::rnn_kept_columns(p), "elements of what was kept");
    check_operand(c, kDY, state * p.steps, "elements of the gradient of Y");
    check_operand(c, kDYh, state, "elements of the gradient of Y_h");
    check_operand(c, kDYc, state, "elements of the gradient of Y_c");
    c.request_scratch(kernels::rnn_gradient_scratch_bytes<T>(p, c.max_threads()));
    return k;
  }
  void run(RunContext& c) const {
    kernels::RnnGradientData<T> d;
    d.X = c.in<T>(kX), d.W = c.in<T>(kW), d.R = c.in<T>(kR), d.P = c.in<T>(kP), d.kept = c.in<T>(kKeptInput);
    d.sequence_lengths = c.in<int32_t>(kSequenceLens);
    d.dY = c.in<T>(kDY), d.dY_h = c.in<T>(kDYh), d.dY_c = c.in<T>(kDYc);
    T** const gradients[] = {&d.dW, &d.dR, &d.dB, &d.dinitial_h, &d.dinitial_c, &d.dP, &d.dX};
    for (int i = 0; i < num_gradients; ++i) *gradients[i] = c.in<void>(kGradientOf[i]) ? c.out<T>(i) : nullptr;
    kernels::rnn_gradient(params, d, c.scratch<void>(), max_threads, c.pool());
  }
};
template <typename T>
using RnnGradKernel = RecurrentGrad<T, RnnKind::rnn>;
template <typename T>
using GruGradKernel = RecurrentGrad<T, RnnKind::gru>;
template <typename T>
using LstmGradKernel = RecurrentGrad<T, RnnKind::lstm>;

template <int kFlops>
Cost recurrent_cost(const ShapeContext& c) {
  const double weights = static_cast<double>(c.num_elements(kW) + c.num_elements(kR));
  const double tokens = static_cast<double>(c.shape(kX)[0] * c.shape(kX)[1]);
  return {kFlops * weights * tokens, 2 * (c.size_bytes(kX) + c.size_bytes(kW) + c.size_bytes(kR))};
}

constexpr TypeSet kRecurrentTypes{DType::float32, DType::float64};
Port maybe(std::string_view operand) { return {operand, kRecurrentTypes, "T", Presence::optional}; }

OpDef recurrent_training(std::string_view name, std::vector<KernelDef> kernels) {
  return {.name = name,
          .domain = "treadle",
          .since = {1},
          .inputs = {{"X", kRecurrentTypes, "T"},
                     {"W", kRecurrentTypes, "T"},
                     {"R", kRecurrentTypes, "T"},
                     maybe("B"),
                     {"sequence_lens", TypeSet{DType::int32}, "", Presence::optional},
                     maybe("initial_h"),
                     maybe("initial_c"),
                     maybe("P")},
          .attributes = {{"activation_alpha"},
                         {"activation_beta"},
                         {"activations"},
                         {"clip"},
                         {"direction", std::string_view("forward")},
                         {"hidden_size"},
                         {"input_forget", int64_t{0}},
                         {"layout", int64_t{0}},
                         {"linear_before_reset", int64_t{0}}},
          .kernels = std::move(kernels)};
}

template <RnnKind kKind>
OpDef recurrent_keeping(std::string_view name, GradientRule gradient, std::vector<KernelDef> kernels) {
  OpDef op = recurrent_training(name, std::move(kernels));
  op.outputs = {maybe("Y"), maybe("Y_h"), maybe("Y_c"), {"kept", kRecurrentTypes, "T"}};
  op.infer = infer_keeping<kKind>;
  op.cost = recurrent_cost<2>;
  op.gradient = gradient;
  return op;
}

template <RnnKind kKind>
Differentiated differentiated_layer(GradientContext& g, std::span<const ValueId> operands) {
  return {.ys = recurrent_as_scan(g, kKind, operands), .first_gradient = kDY, .xs = kGradientOf};
}

template <RnnKind kKind>
OpDef recurrent_grad(std::string_view name, std::vector<KernelDef> kernels) {
  OpDef op = recurrent_training(name, std::move(kernels));
  op.inputs.push_back({"kept", kRecurrentTypes, "T"});
  for (std::string_view gradient : {"dY", "dY_h", "dY_c"}) op.inputs.push_back(maybe(gradient));
  op.outputs = {maybe("dW"), maybe("dR"), maybe("dB"), maybe("dinitial_h"), maybe("dinitial_c"), maybe("dP"), maybe("dX")};
  op.infer = infer_rnn_grad;
  op.cost = recurrent_cost<4>;
  op.differentiated = differentiated_layer<kKind>;
  return op;
}

}  // namespace

RnnParams params_of_attributes(RnnKind kind, const Attributes& attributes) {
  RnnParams p;
  p.kind = kind;
  const int64_t directions = attributes.get_string("direction", "forward") == "bidirectional" ? 2 : 1;
  return make_rnn_params(kind, attributes, {directions, p.gates(), 1}, {directions, p.gates(), 1});
}

namespace {

// Makes the forward node output the intermediate results that the gradient reads, and returns them. For 16-bit floats, a second layer
// computes them in float32.
ValueId kept_of(GradientContext& g, std::string_view name) {
  if (g.node().is(name, "treadle")) return g.output(kKept);  // for second derivatives
  const DType dtype = g.type(g.input(kX)).dtype;
  if (dtype != DType::float32 && dtype != DType::float64) {
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < kRnnOperands; ++i) inputs.push_back(i == kSequenceLens ? g.input(i) : widened(g, g.input(i)));
    while (inputs.back() == kNoValue) inputs.pop_back();
    Graph& graph = g.graph();
    const NodeId layer = graph.add_node({.op_type = std::string(name),
                                         .inputs = std::move(inputs),
                                         .attributes = g.attributes(),
                                         .domain = "treadle",
                                         .name = g.node().name + "_grad/" + std::string(name),
                                         .num_outputs = 0});
    graph.node(layer).sources = g.node().sources;
    copy_layers(g.node(), graph.node(layer));
    GradientContext of_layer(graph, layer, {});
    return require_output(of_layer, kKept);
  }
  Node& node = g.graph().node(g.node().id);
  node.op_type = name, node.domain = "treadle", node.version = 1;
  node.op = find_op(node.domain, node.op_type);
  return require_output(g, kKept);
}

Gradients recurrent(GradientContext& g, RnnKind kind, std::string_view keeping, std::string_view name) {
  const Attributes attributes = g.attributes();
  const RnnParams params = params_of_attributes(kind, attributes);
  for (int d = 0; d < params.num_directions(); ++d)
    for (const auto& activation : params.activations[d])
      if (!kernels::has_rnn_slope(activation.function))
        throw Error(ErrorCode::not_implemented, "there is no derivative of one of its activations");
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < kRnnOperands; ++i) inputs.push_back(g.input(i));
  inputs.push_back(kept_of(g, keeping));
  for (size_t i = 0; i < 3; ++i) inputs.push_back(g.grad_output(i));
  while (inputs.back() == kNoValue) inputs.pop_back();
  const std::vector<ValueId> made = g.op_n(name, std::move(inputs), g.wants(kX) ? kRnnGradients : kRnnGradients - 1, attributes, "treadle");
  Gradients result(kRnnOperands, kNoValue);
  for (size_t i = 0; i < made.size(); ++i) result[static_cast<size_t>(kGradientOf[i])] = made[i];
  return result;
}

}  // namespace

namespace gradients {

Gradients rnn(GradientContext& g) { return recurrent(g, RnnKind::rnn, "RNNKeeping", "RNNGrad"); }

Gradients gru(GradientContext& g) { return recurrent(g, RnnKind::gru, "GRUKeeping", "GRUGrad"); }

Gradients lstm(GradientContext& g) { return recurrent(g, RnnKind::lstm, "LSTMKeeping", "LSTMGrad"); }

}  // namespace gradients

std::vector<OpDef> rnn_gradient_ops() {
  return {recurrent_keeping<RnnKind::rnn>("RNNKeeping", gradients::rnn, typed<RnnKeepingKernel, float, double>()),
          recurrent_keeping<RnnKind::gru>("GRUKeeping", gradients::gru, typed<GruKeepingKernel, float, double>()),
          recurrent_keeping<RnnKind::lstm>("LSTMKeeping", gradients::lstm, typed<LstmKeepingKernel, float, double>()),
          recurrent_grad<RnnKind::rnn>("RNNGrad", typed<RnnGradKernel, float, double>()),
          recurrent_grad<RnnKind::gru>("GRUGrad", typed<GruGradKernel, float, double>()),
          recurrent_grad<RnnKind::lstm>("LSTMGrad", typed<LstmGradKernel, float, double>())};
}

}  // namespace treadle::ops
