// Computes RNN, GRU and LSTM. First computes the products with W for all time steps at once. Then dispatches one step after the other.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <vector>

#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/rnn/rnn.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

using kernels::RnnDirection;
using kernels::RnnKind;
using kernels::RnnParams;
using kernels::Unary;

// These flags have the same values as in recurrent.comp.
enum Flag : uint32_t {
  has_bias = 1,
  has_lengths = 2,
  has_h = 4,
  has_c = 8,
  has_y = 16,
  is_reverse = 32,
  reset_last = 64,
  only_reset = 128,
  has_peepholes = 256,
  input_forget = 512,
  batch_first = 1024
};

struct RecurrentState final : FaultState {
  RnnKind kind = RnnKind::rnn;
  const vulkan::Shader* product = nullptr;
  const vulkan::Shader* steps[2] = {};  // shader of a time step, for each direction
};

struct Recurrent {
  RnnParams params;
  bool has_input[8];
  int64_t gates, states[2], cell;  // offsets in scratch memory, in bytes
  ConvertedOperand inputs[8], outputs[3];

  static Recurrent bind(BindContext& c) {
    Recurrent k{ops::bind_recurrent(c, c.packed<RecurrentState>().kind), {}, 0, {}, 0, {}, {}};
    const RnnParams& p = k.params;
    // Some exporters write an empty tensor instead of an absent one.
    for (int i = 0; i < 8; ++i) k.has_input[i] = i < c.num_inputs() && c.has_input(i) && c.num_elements(i) > 0;
    ops::ScratchLayout layout;
    const auto take = [&layout](int64_t elements) { return layout.take(count32(elements) * sizeof(float)); };
    k.gates = take(p.steps * p.batch * p.gates() * p.hidden);
    // The last step writes its states with the strides of the outputs, even if the node does not have these outputs. So the states in
    // scratch memory need the size for all directions.
    for (int64_t& state : k.states) state = take(p.num_directions() * p.batch * p.hidden);
    k.cell = take(p.num_directions() * p.batch * p.hidden);
    for (const int i : {ops::kX, ops::kW, ops::kR}) count32(c.num_elements(i));
    count32(p.steps * p.num_directions() * p.batch * p.hidden);
    for (int i = 0; i < 8; ++i)
      if (k.has_input[i]) k.inputs[i] = ConvertedOperand::reserve(layout, c.dtype(i), wide_type(c.dtype(i)), c.num_elements(i));
    for (int i = 0; i < 3; ++i)
      if (c.has_output(i))
        k.outputs[i] = ConvertedOperand::reserve(layout, c.output_dtype(i), DType::float32, c.output_shape(i).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    void* operands[11] = {};  // addresses of the operands, converted to float32
    for (int i = 0; i < 8; ++i)
      if (has_input[i]) operands[i] = const_cast<void*>(inputs[i].read(c, i));
    for (int i = 0; i < 3; ++i)
      if (c.out<void>(i)) operands[8 + i] = outputs[i].result(c, i);
    RunContext wide(operands, 8, 3, c.scratch<void>(), c.pool(), &c.packed<RecurrentState>());
    for (int direction = 0; direction < params.num_directions(); ++direction) {
      multiply_inputs(wide, direction);
      for (int64_t step = 0; step < std::max<int64_t>(params.steps, 1); ++step) run_step(wide, direction, step);
    }
    for (int i = 0; i < 3; ++i)
      if (c.out<void>(i)) outputs[i].store(c, i);
  }

 private:
  int64_t state_size() const { return params.batch * params.hidden; }
  int64_t direction_step() const { return params.batch_first ? params.hidden : state_size(); }
  float* at(RunContext& c, int64_t offset) const { return reinterpret_cast<float*>(ops::scratch_at(c, offset)); }

  void multiply_inputs(RunContext& c, int direction) const {
    ProductCall call;
    call.y = at(c, gates), call.a = c.in<void>(ops::kX);
    call.rows = params.steps * params.batch, call.columns = params.gates() * params.hidden, call.terms = params.input;
    call.b = c.in<float>(ops::kW) + direction * call.columns * call.terms;
    call.a_row = call.terms, call.b_column = call.terms;
    dispatch_product(*c.packed<RecurrentState>().product, call);
  }

  void run_step(RunContext& c, int direction, int64_t step) const {
    const int64_t all_gates = params.gates() * params.hidden;
    const bool is_first = step == 0, is_last = step + 1 >= params.steps, is_lstm = params.kind == RnnKind::lstm;
    const bool backwards = params.direction == RnnDirection::reverse || direction == 1;
    uint32_t flags = (has_input[ops::kB] ? has_bias : 0U) | (has_input[ops::kSequenceLens] ? has_lengths : 0U) |
                     (backwards ? is_reverse : 0U) | (params.linear_before_reset ? reset_last : 0U) |
                     (has_input[ops::kP] ? has_peepholes : 0U) | (params.input_forget ? input_forget : 0U) |
                     (params.batch_first ? batch_first : 0U);
    if (!is_first || has_input[ops::kInitialH]) flags |= has_h;
    if (is_lstm && (!is_first || has_input[ops::kInitialC])) flags |= has_c;
    Call call{};
    call.direction = direction;
    // In the model's states, the axis of the batch may come before that of the directions.
    const int64_t outside = params.batch_first ? params.num_directions() * params.hidden : params.hidden;
    call.in_stride = is_first ? outside : params.hidden;
    call.r = c.in<float>(ops::kR) + direction * all_gates * params.hidden;
    if (has_input[ops::kB]) call.bias = c.in<float>(ops::kB) + direction * 2 * all_gates;
    call.h_in = is_first ? initial(c, ops::kInitialH, direction) : at(c, states[(step + 1) % 2]);
    call.h_out = final_state(c, ops::kYh, direction, is_last, states[step % 2]);
    call.out_stride = is_last ? outside : params.hidden;
    call.c_in = is_lstm && is_first ? initial(c, ops::kInitialC, direction) : at(c, cell);
    call.c_out = is_lstm ? final_state(c, ops::kYc, direction, is_last, cell) : at(c, cell);
    if (params.kind == RnnKind::gru && !params.linear_before_reset) dispatch(c, call, flags | only_reset, step);
    const int64_t in_y = params.batch_first ? params.hidden : state_size();
    if (params.steps > 0 && c.out<float>(ops::kY)) call.y = c.out<float>(ops::kY) + direction * in_y, flags |= has_y;
    dispatch(c, call, flags, step);
  }
  const float* initial(RunContext& c, int input, int direction) const {
    return has_input[input] ? c.in<float>(input) + direction * direction_step() : nullptr;
  }
  float* final_state(RunContext& c, int output, int direction, bool is_last, int64_t offset) const {
    return is_last && c.out<float>(output) ? c.out<float>(output) + direction * direction_step() : at(c, offset);
  }

  struct Call {
    const float *r, *bias, *h_in, *c_in;
    float *h_out, *c_out, *y;
    int direction;
    int64_t in_stride, out_stride;
  };
  void dispatch(RunContext& c, const Call& call, uint32_t flags, int64_t step) const {
    const auto& state = c.packed<RecurrentState>();
    vulkan::VulkanStream::FaultSite site;
    if (flags & has_lengths) site = state.fault(fmt::format("a sequence's length is not in [0, {}]", params.steps));
    Push push;
    push.pointer(at(c, gates)).pointer(call.r).pointer(call.bias).pointer(c.in<void>(ops::kSequenceLens));
    push.fault(site).pointer(call.h_in).pointer(call.h_out).pointer(call.c_in);
    push.pointer(call.c_out).pointer(call.y);
    push.pointer(has_input[ops::kP] ? c.in<float>(ops::kP) + call.direction * 3 * params.hidden : nullptr);
    push.word(flags).word(site.number);
    const int64_t y_step = params.num_directions() * (params.batch_first ? params.hidden : state_size());
    push_sizes(push, {step, params.steps, params.batch, params.hidden, y_step, call.in_stride, call.out_stride});
    push.word(params.clip);
    stream().dispatch(*state.steps[call.direction], push.bytes(), groups_over(count32(state_size())));
  }
};

/// Returns true if recurrent.comp supports the activation function.
bool is_known(Unary function) {
  constexpr Unary kKnown[] = {Unary::none,        Unary::relu,     Unary::leaky_relu, Unary::thresholded_relu,
                              Unary::sigmoid,     Unary::tanh,     Unary::elu,        Unary::hard_sigmoid,
                              Unary::scaled_tanh, Unary::softplus, Unary::softsign,   Unary::affine};
  return std::find(std::begin(kKnown), std::end(kKnown), function) != std::end(kKnown);
}

/// Returns the shader for the time steps of a direction; null if it lacks one of the activation functions.
const vulkan::Shader* step_shader(const RnnParams& params, int direction) {
  std::vector<uint32_t> constants{static_cast<uint32_t>(params.kind)};
  for (const kernels::RnnActivation& activation : params.activations[direction]) {
    if (!is_known(activation.function)) return nullptr;
    constants.push_back(static_cast<uint32_t>(activation.function));
    for (const float parameter : {activation.a, activation.b}) constants.push_back(std::bit_cast<uint32_t>(parameter));
  }
  return find_shader("recurrent", DType::float32, constants);
}

}  // namespace

DeviceKernel find_recurrent(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Recurrent>("gpu");
  const std::optional<RnnKind> kind = ops::rnn_kind(node);
  if (!kind) return {};
  auto state = std::make_shared<RecurrentState>();
  state->kind = *kind;
  const RnnParams params = ops::params_of_attributes(state->kind, node.attributes);
  if (wide_type(graph.type(node.inputs[0]).dtype) != DType::float32) return {};
  state->product = find_shader("product", DType::float32);
  for (int direction = 0; direction < params.num_directions(); ++direction) {
    state->steps[direction] = step_shader(params, direction);
    if (!state->steps[direction]) return {};
  }
  state->node = describe(node);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
