// Implements RNN, GRU and LSTM: inference and kernels.
#include "kernels/rnn/rnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/files/file.h"
#include "core/values/large_memory.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/rnn/rnn_gradient.h"
#include "ops/checks.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/packed_parts.h"
#include "ops/rnn/rnn.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::RnnActivation;
using kernels::RnnDirection;
using kernels::RnnKind;
using kernels::RnnParams;
using kernels::Unary;

using enum RnnInput;
using enum RnnOutput;

/// An LSTM whose states are quantized to 8 bits for the products. DynamicQuantizeLSTM of com.microsoft is decomposed into it.
constexpr std::string_view kLstmOfBytes = "LSTMOfBytes";

/// Finds an activation by name, ignoring case. @throws Error(not_implemented) if recurrent cells do not support it
const ScalarFunction& find_activation(std::string_view name) {
  const ScalarFunction* function = find_function_ignoring_case(name);
  if (!function || function->code == Unary::none || function->a.input >= 0)
    throw Error(ErrorCode::not_implemented, fmt::format("the activation \"{}\"", name));
  return *function;
}

RnnDirection direction_of(const Attributes& attributes) {
  const std::string_view name = attributes.get_string("direction", "forward");
  if (name == "forward") return RnnDirection::forward;
  if (name == "reverse") return RnnDirection::reverse;
  if (name == "bidirectional") return RnnDirection::bidirectional;
  throw Error(ErrorCode::invalid_argument, fmt::format("direction is \"{}\", not forward, reverse or bidirectional", name));
}

// The lists of alphas and betas have an element only for each function that has this parameter.
void set_activations(const Attributes& attributes, RnnParams& params) {
  params.set_default_activations();
  const std::vector<std::string>& names = attributes.get_strings("activations");
  if (names.empty()) return;
  const std::vector<float>&alphas = attributes.get_floats("activation_alpha"), &betas = attributes.get_floats("activation_beta");
  const size_t per_direction = params.kind == RnnKind::rnn   ? 1
                               : params.kind == RnnKind::gru ? 2
                                                             : 3,
               directions = static_cast<size_t>(params.num_directions());
  if (names.size() != per_direction * directions)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("activations has {} elements, expected {}", names.size(), per_direction * directions));
  size_t next_alpha = 0, next_beta = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const ScalarFunction& entry = find_activation(names[i]);
    RnnActivation activation{entry.code, entry.a.otherwise, entry.b.otherwise};
    if (!entry.a.name.empty() && next_alpha < alphas.size()) activation.a = alphas[next_alpha++];
    if (!entry.b.name.empty() && next_beta < betas.size()) activation.b = betas[next_beta++];
    params.activations[i / per_direction][i % per_direction] = activation;
  }
}

}  // namespace

RnnParams make_rnn_params(RnnKind kind, const Attributes& attributes, const Shape& w, const Shape& r) {
  RnnParams p;
  p.kind = kind;
  p.direction = direction_of(attributes);
  p.batch_first = attributes.get_int("layout") != 0;
  p.clip = attributes.get_float("clip", 0);
  if (attributes.has("clip") && !(p.clip > 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("clip is {}; expected a positive number", p.clip));
  p.linear_before_reset = attributes.get_int("linear_before_reset") != 0;
  p.input_forget = attributes.get_int("input_forget") != 0;
  set_activations(attributes, p);
  if (w.rank() != 3 || r.rank() != 3)
    throw Error(ErrorCode::invalid_argument, fmt::format("W is of rank {} and R of rank {}, not 3", w.rank(), r.rank()));
  p.input = w[2], p.hidden = r[2];
  check_equal(w[0], p.num_directions(), "directions of W and of the attribute");
  check_equal(r[0], p.num_directions(), "directions of R and of the attribute");
  check_equal(w[1], p.gates() * p.hidden, "gates of W and of R");
  check_equal(r[1], p.gates() * p.hidden, "rows and columns of R");
  return p;
}

std::optional<RnnKind> rnn_kind(const Node& node) {
  if (node.is("RNN")) return RnnKind::rnn;
  if (node.is("GRU")) return RnnKind::gru;
  return node.is("LSTM") ? std::optional(RnnKind::lstm) : std::nullopt;
}

RnnParams bind_recurrent(const BindContext& c, RnnKind kind) {
  const int num_inputs = kind == RnnKind::lstm ? 8 : 6, num_outputs = kind == RnnKind::lstm ? 3 : 2;
  RnnParams p = make_rnn_params(kind, c.node().attributes, c.shape(kW), c.shape(kR));
  const Shape& x = c.shape(kX);
  p.steps = x[p.batch_first ? 1 : 0], p.batch = x[p.batch_first ? 0 : 1];
  check_equal(x[2], p.input, "features of X and W");
  const int64_t directions = p.num_directions();
  if (c.has_input(kB)) check_equal(c.num_elements(kB), directions * 2 * p.gates() * p.hidden, "elements of B");
  if (c.has_input(kSequenceLens)) check_equal(c.num_elements(kSequenceLens), p.batch, "sequence_lens and the batch");
  for (int i : {kInitialH, kInitialC})
    if (i < num_inputs && c.has_input(i)) check_equal(c.num_elements(i), directions * p.batch * p.hidden, "elements of an initial state");
  if (kP < num_inputs && c.has_input(kP)) check_equal(c.num_elements(kP), directions * 3 * p.hidden, "elements of P");
  // The shapes of outputs may have been inferred from the attribute hidden_size, so they are checked against the weights.
  for (int i = 0; i < num_outputs; ++i)
    if (c.has_output(i))
      check_equal(c.output_shape(i).num_elements(), (i == 0 ? p.steps : 1) * directions * p.batch * p.hidden,
                  "elements of an output for hidden_size, and for the columns of R");
  return p;
}

void infer_recurrent(InferContext& c, RnnKind kind) {
  const bool batch_first = c.get_int("layout") != 0;
  const Dim directions = direction_of(c.attributes()) == RnnDirection::bidirectional ? 2 : 1;
  const int num_outputs = kind == RnnKind::lstm ? 3 : 2;
  constexpr std::array<std::string_view, 3> kNames{"X", "W", "R"};
  for (int i : {kX, kW, kR})
    if (c.has_rank(i) && c.rank(i) != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is of rank {}, not 3", kNames[static_cast<size_t>(i)], c.rank(i)));
  auto extent = [&](int input, size_t axis, std::string_view hint) {
    return c.has_rank(input) ? c.shape(input)[axis] : c.data_dependent_dim(hint);
  };
  const Dim steps = extent(kX, batch_first ? 1 : 0, "steps"), batch = extent(kX, batch_first ? 0 : 1, "batch");
  if (c.has_rank(kX) && c.has_rank(kW)) unify(c.shape(kX)[2], c.shape(kW)[2], "features of X and W");
  const bool told = c.attributes().has("hidden_size");
  Dim hidden = told && !c.has_rank(kR) ? Dim(c.get_int("hidden_size")) : extent(kR, 2, "hidden");
  if (told) hidden = unify(hidden, c.get_int("hidden_size"), "R and hidden_size");
  if (c.has_output(kY))
    c.set_output(kY, c.dtype(kX),
                 batch_first ? SymbolicShape{batch, steps, directions, hidden} : SymbolicShape{steps, directions, batch, hidden});
  for (int i = kYh; i < num_outputs; ++i)
    if (c.has_output(i))
      c.set_output(i, c.dtype(kX), batch_first ? SymbolicShape{batch, directions, hidden} : SymbolicShape{directions, batch, hidden});
}

namespace {

template <RnnKind kKind>
void infer_rnn(InferContext& c) {
  infer_recurrent(c, kKind);
}

Cost rnn_cost(const ShapeContext& c) {
  const double weights = static_cast<double>(c.num_elements(kW) + c.num_elements(kR));
  const double tokens = static_cast<double>(c.shape(kX)[0] * c.shape(kX)[1]);
  return {2 * weights * tokens, c.size_bytes(kX) + c.size_bytes(kW) + c.size_bytes(kR)};
}

/// Constant weights, packed when the session is created. Empty if one of the weights is not constant.
struct PackedRnn final : PackedState {
  Tensor weights;
  size_t size_bytes() const override { return weights.defined() ? weights.size_bytes() : 0; }
  std::vector<PackedPart> parts() const override {
    return weights.defined() ? std::vector<PackedPart>{{0, weights}} : std::vector<PackedPart>{};
  }
};

/// Reads an operand as float32, either in place or converted in scratch memory. float64 operands come here only if an activation is one
/// that RecurrentInDouble does not support.
template <typename T>
struct AsFloat {
  int64_t offset = 0, count = 0;

  static AsFloat make(ScratchLayout& layout, int64_t count) {
    return {std::is_same_v<T, float> ? 0 : layout.take(static_cast<size_t>(count) * sizeof(float)), count};
  }
  const float* read(RunContext& c, int input) const {
    const T* src = c.in<T>(input);
    if constexpr (std::is_same_v<T, float>) {
      return src;
    } else {
      if (src == nullptr || count == 0) return nullptr;
      auto* dst = reinterpret_cast<float*>(scratch_at(c, offset));
      convert_array(src, dst, count, c.pool());
      return dst;
    }
  }
};

template <typename T, RnnKind kKind>
struct Recurrent {
  static constexpr int kNumInputs = kKind == RnnKind::lstm ? 8 : 6, kNumOutputs = kKind == RnnKind::lstm ? 3 : 2;
  RnnParams params;
  AsFloat<T> inputs[8], outputs[3];
  bool present[8], wanted[3], packed;
  int64_t weights, work;
  static constexpr bool shares_packed = true;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<PackedRnn>();
    Tensor dense[8];
    std::vector<float> wide[8];  // converted copies of weights in other dtypes
    const float* data[8] = {};
    for (int i : {kW, kR, kB, kP}) {
      if (i >= kNumInputs || !c.has_input(i)) continue;
      const Tensor* tensor = c.constant(i);
      if (tensor == nullptr || tensor->num_elements() == 0) return state;
      dense[i] = tensor->contiguous();
      if constexpr (std::is_same_v<T, float>) {
        data[i] = dense[i].template data<float>();
      } else {
        wide[i].resize(static_cast<size_t>(dense[i].num_elements()));
        convert_array(dense[i].template data<T>(), wide[i].data(), dense[i].num_elements(), nullptr);
        data[i] = wide[i].data();
      }
    }
    const RnnParams params = make_rnn_params(kKind, c.attributes(), c.constant(kW)->shape(), c.constant(kR)->shape());
    const int64_t size = kernels::packed_rnn_size(params);
    state->weights = Tensor(DType::float32, Shape{size}, allocate_large(static_cast<size_t>(size) * sizeof(float)));
    std::memset(state->weights.raw(), 0, state->weights.size_bytes());  // zeroes gaps, so files are reproducible
    kernels::pack_rnn(params, {data[kW], data[kR], data[kB], data[kP]}, state->weights.data<float>());
    for (const Tensor& tensor : dense) {
      if (tensor.num_elements() > 0) drop_mapped_pages(tensor.raw(), tensor.size_bytes());
    }
    return state;
  }

  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    for (int i : {kW, kR, kB, kP})
      if (i < kNumInputs && c.has_input(i) && (!c.stored(i) || c.stored(i)->num_elements() == 0)) return nullptr;
    const RnnParams params = make_rnn_params(kKind, c.attributes(), c.stored(kW)->shape(), c.stored(kR)->shape());
    const Tensor* found = find_part(parts, 0, DType::float32);
    if (!found || found->num_elements() != kernels::packed_rnn_size(params)) return nullptr;
    auto state = std::make_unique<PackedRnn>();
    state->weights = *found;
    return state;
  }

  static Recurrent bind(BindContext& c) {
    Recurrent k{};
    k.params = bind_recurrent(c, kKind);
    k.params.bytes = c.node().op_type == kLstmOfBytes;
    ScratchLayout layout;
    k.packed = c.packed<PackedRnn>().weights.defined();
    for (int i = 0; i < kNumInputs; ++i) {
      k.present[i] = c.has_input(i);
      const bool is_weight = i == kW || i == kR || i == kB || i == kP;
      if (k.present[i] && i != kSequenceLens && !(is_weight && k.packed)) k.inputs[i] = AsFloat<T>::make(layout, c.num_elements(i));
    }
    for (int i = 0; i < kNumOutputs; ++i) {
      k.wanted[i] = c.has_output(i);
      if (k.wanted[i]) k.outputs[i] = AsFloat<T>::make(layout, c.output_shape(i).num_elements());
    }
    if (!k.packed) k.weights = layout.take(static_cast<size_t>(kernels::packed_rnn_size(k.params)) * sizeof(float));
    k.work = layout.take(kernels::rnn_scratch_bytes(k.params));
    c.request_scratch(layout.total());
    return k;
  }
  const float* input(RunContext& c, int i) const { return i < kNumInputs && present[i] ? inputs[i].read(c, i) : nullptr; }
  float* output(RunContext& c, int i) const {
    if (i >= kNumOutputs || !wanted[i]) return nullptr;
    if constexpr (std::is_same_v<T, float>)
      return c.out<float>(i);
    else
      return reinterpret_cast<float*>(scratch_at(c, outputs[i].offset));
  }
  void run(RunContext& c) const {
    const float* filters;
    if (packed) {
      filters = c.packed<PackedRnn>().weights.data<float>();
    } else {
      auto* room = reinterpret_cast<float*>(scratch_at(c, weights));
      kernels::pack_rnn(params, {input(c, kW), input(c, kR), input(c, kB), input(c, kP)}, room);
      filters = room;
    }
    kernels::RnnData data;
    data.X = input(c, kX);
    data.sequence_lengths = present[kSequenceLens] ? c.in<int32_t>(kSequenceLens) : nullptr;
    data.initial_h = input(c, kInitialH), data.initial_c = input(c, kInitialC);
    data.Y = output(c, kY), data.Y_h = output(c, kYh), data.Y_c = output(c, kYc);
    kernels::rnn(params, filters, data, scratch_at(c, work), c.pool());
    if constexpr (!std::is_same_v<T, float>) {
      for (int i = 0; i < kNumOutputs; ++i)
        if (wanted[i]) convert_array(static_cast<const float*>(output(c, i)), c.out<T>(i), outputs[i].count, c.pool());
    }
  }
};
// Computes float64 layers with the kernel for training, which keeps intermediate results of each step. They go to scratch memory here.
template <RnnKind kKind>
struct RecurrentInDouble {
  RnnParams params;
  int max_threads;
  unsigned wanted;  // bit i: output i is used
  int64_t kept, work;

  static std::string declines(const CreateContext& c) {
    RnnParams p;
    p.kind = kKind, p.direction = direction_of(c.attributes());
    set_activations(c.attributes(), p);
    for (int d = 0; d < p.num_directions(); ++d)
      for (const RnnActivation& activation : p.activations[d])
        if (!kernels::has_rnn_slope(activation.function)) return "one of the activations is computed in float32 only";
    return {};
  }
  static RecurrentInDouble bind(BindContext& c) {
    RecurrentInDouble k{bind_recurrent(c, kKind), c.max_threads(), 0, 0, 0};
    for (int i = 0; i < (kKind == RnnKind::lstm ? 3 : 2); ++i) k.wanted |= c.has_output(i) ? 1U << i : 0U;
    const RnnParams& p = k.params;
    ScratchLayout layout;
    const int64_t rows = p.num_directions() * (p.steps + 1) * p.batch;
    k.kept = layout.take(static_cast<size_t>(rows * kernels::rnn_kept_columns(p)) * sizeof(double));
    k.work = layout.take(kernels::rnn_keeping_scratch_bytes<double>(p, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    kernels::RnnKeepingData<double> d;
    d.X = c.in<double>(kX), d.W = c.in<double>(kW), d.R = c.in<double>(kR), d.B = c.in<double>(kB);
    d.sequence_lengths = c.in<int32_t>(kSequenceLens), d.initial_h = c.in<double>(kInitialH);
    d.Y = output(c, kY), d.Y_h = output(c, kYh);
    if (kKind == RnnKind::lstm) d.P = c.in<double>(kP), d.initial_c = c.in<double>(kInitialC), d.Y_c = output(c, kYc);
    d.kept = reinterpret_cast<double*>(scratch_at(c, kept));
    kernels::rnn_keeping(params, d, scratch_at(c, work), max_threads, c.pool());
  }

 private:
  double* output(RunContext& c, int i) const { return (wanted >> i & 1U) != 0 ? c.out<double>(i) : nullptr; }
};

template <typename T>
using RnnKernel = Recurrent<T, RnnKind::rnn>;
template <typename T>
using GruKernel = Recurrent<T, RnnKind::gru>;
template <typename T>
using LstmKernel = Recurrent<T, RnnKind::lstm>;

template <RnnKind kKind>
std::vector<KernelDef> in_double() {
  return built_kernel<RecurrentInDouble<kKind>, double>("double");
}

// Removes the attribute that told whether Y is used. Whether it is used follows from the outputs of the node.
void drop_output_sequence(Graph& graph, NodeId id) { graph.node(id).attributes.erase("output_sequence"); }

OpDef recurrent(std::string_view name, std::vector<int> since, std::vector<UpgradeStep> upgrade, void (*infer)(InferContext&),
                std::vector<KernelDef> kernels) {
  constexpr TypeSet kInt32{DType::int32};
  return {.name = name,
          .since = std::move(since),
          .upgrade = std::move(upgrade),
          .inputs = {{"X", kFloats, "T"},
                     {"W", kFloats, "T"},
                     {"R", kFloats, "T"},
                     {"B", kFloats, "T", Presence::optional},
                     {"sequence_lens", kInt32, "T1", Presence::optional},
                     {"initial_h", kFloats, "T", Presence::optional}},
          .outputs = {{"Y", kFloats, "T", Presence::optional}, {"Y_h", kFloats, "T", Presence::optional}},
          .attributes = {{"activation_alpha"},
                         {"activation_beta"},
                         {"activations"},
                         {"clip"},
                         {"direction", std::string_view("forward")},
                         {"hidden_size"},
                         {"layout", int64_t{0}}},
          .infer = infer,
          .cost = rnn_cost,
          .kernels = std::move(kernels),
          .half = HalfFloats::float32_by_itself};
}

}  // namespace

std::vector<OpDef> rnn_ops() {
  OpDef rnn = recurrent("RNN", {1, 7, 14, 22}, {{1, drop_output_sequence}}, infer_rnn<RnnKind::rnn>,
                        in_double<RnnKind::rnn>() + typed<RnnKernel, float, double, Float16, BFloat16>());
  OpDef gru = recurrent("GRU", {1, 3, 7, 14, 22}, {{1, drop_output_sequence}, {3, drop_output_sequence}}, infer_rnn<RnnKind::gru>,
                        in_double<RnnKind::gru>() + typed<GruKernel, float, double, Float16, BFloat16>());
  gru.attributes.push_back({"linear_before_reset", int64_t{0}});
  OpDef lstm = recurrent("LSTM", {1, 7, 14, 22}, {{1, drop_output_sequence}}, infer_rnn<RnnKind::lstm>,
                         in_double<RnnKind::lstm>() + typed<LstmKernel, float, double, Float16, BFloat16>());
  lstm.inputs.push_back({"initial_c", kFloats, "T", Presence::optional});
  lstm.inputs.push_back({"P", kFloats, "T", Presence::optional});
  lstm.outputs.push_back({"Y_c", kFloats, "T", Presence::optional});
  lstm.attributes.push_back({"input_forget", int64_t{0}});
  rnn.gradient = gradients::rnn, gru.gradient = gradients::gru, lstm.gradient = gradients::lstm;
  OpDef of_bytes = lstm;
  of_bytes.name = kLstmOfBytes, of_bytes.domain = "treadle", of_bytes.since = {1}, of_bytes.upgrade.clear();
  of_bytes.kernels = {kernel<LstmKernel<float>>("plain", DType::float32)};
  return {rnn, gru, lstm, of_bytes};
}

}  // namespace treadle::ops
