// Implements operators that update a state token by token: LinearAttention and CausalConvWithState.
#include "ops/nn/linear_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

UpdateRule update_rule_of(const Attributes& attributes) {
  const std::string_view name = attributes.get_string("update_rule", "gated_delta");
  if (name == "linear") return UpdateRule::linear;
  if (name == "gated") return UpdateRule::gated;
  if (name == "delta") return UpdateRule::delta;
  if (name == "gated_delta") return UpdateRule::gated_delta;
  throw Error(ErrorCode::invalid_argument, fmt::format("update_rule is \"{}\", not linear, gated, delta or gated_delta", name));
}

Heads heads_of(const Attributes& attributes) {
  const Heads heads{attributes.get_int("q_num_heads"), attributes.get_int("kv_num_heads")};
  if (heads.kv < 1 || heads.q < 1 || (heads.q % heads.kv != 0 && heads.kv % heads.q != 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} query heads cannot share {} heads of keys", heads.q, heads.kv));
  return heads;
}

int64_t window_of(const Attributes& attributes) {
  const int64_t window = attributes.get_int("state_window", 0);
  if (window < 0 || window > 8) throw Error(ErrorCode::invalid_argument, fmt::format("state_window is {}; expected 0 to 8", window));
  return window;
}

LinearAttentionPlan LinearAttentionPlan::make(const BindContext& c) {
  const Shape &q = c.shape(kQuery), &k = c.shape(kKey), &v = c.shape(kValue);
  LinearAttentionPlan a{};
  a.heads = heads_of(c.node().attributes);
  a.batch = q[0], a.length = q[1], a.key_size = q[2] / a.heads.q, a.value_size = v[2] / a.heads.kv;
  check_equal(q[2], a.key_size * a.heads.q, "features of query, and heads times their size");
  check_equal(v[2], a.value_size * a.heads.kv, "features of value, and heads times their size");
  check_equal(k[2], a.key_size * a.heads.kv, "features of key, and heads times their size");
  for (int i : {kKey, kValue})
    check_equal(c.shape(i)[0], a.batch, "batches of query and of another input"),
        check_equal(c.shape(i)[1], a.length, "lengths of query and of another input");
  a.rule = update_rule_of(c.node().attributes), a.window = window_of(c.node().attributes);
  const float wanted = c.get_float("scale");
  a.scale = wanted != 0 ? wanted : 1 / std::sqrt(static_cast<float>(std::max<int64_t>(a.key_size, 1)));
  a.has_past = c.has_input(kPast);
  a.state_dtype = a.has_past ? c.dtype(kPast) : c.dtype(kQuery);
  const int64_t tokens = a.batch * a.length;
  if (a.gated()) {
    if (!c.has_input(kDecay)) throw Error(ErrorCode::invalid_model, "the update rule needs a decay");
    a.decay_per_key = c.num_elements(kDecay) == tokens * a.heads.kv * a.key_size && c.shape(kDecay).back() == a.heads.kv * a.key_size;
    if (!a.decay_per_key) check_equal(c.num_elements(kDecay), tokens * a.heads.kv, "elements of decay, and tokens times heads");
  }
  if (a.delta()) {
    if (!c.has_input(kBeta)) throw Error(ErrorCode::invalid_model, "the update rule needs a beta");
    a.beta_per_head = c.shape(kBeta).back() == a.heads.kv && c.num_elements(kBeta) == tokens * a.heads.kv;
    if (!a.beta_per_head) check_equal(c.num_elements(kBeta), tokens, "elements of beta, and tokens");
  }
  const int64_t states = a.batch * a.heads.kv;
  if (a.has_past) check_equal(c.num_elements(kPast), a.slots() * states * a.key_size * a.value_size, "elements of past_state");
  return a;
}

namespace {

constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
using StateTypes = TypeList<float, Float16, BFloat16>;

void infer_linear_attention(InferContext& c) {
  const Heads heads = heads_of(c.attributes());
  const DType state = c.has_input(kPast) ? c.dtype(kPast) : c.dtype(kQuery);
  for (int i : {kQuery, kKey, kValue}) {
    if (!c.has_rank(i)) {
      c.set_output_dtype(0, c.dtype(kQuery));
      if (c.has_output(1)) c.set_output_dtype(1, state);
      return;
    }
    if (c.rank(i) != 3) throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 3", i, c.rank(i)));
  }
  const SymbolicShape &q = c.shape(kQuery), &v = c.shape(kValue);
  const Dim key_size = floor_div(q[2], heads.q), value_size = floor_div(v[2], heads.kv);
  c.set_output(0, c.dtype(kQuery), {q[0], q[1], value_size * heads.outputs()});
  SymbolicShape present{q[0], heads.kv, key_size, value_size};
  if (const int64_t window = window_of(c.attributes()); window > 0) present.insert(present.begin(), window);
  if (c.has_output(1)) c.set_output(1, state, std::move(present));
}

// Computes the recurrence token by token. Each head of keys has a state matrix [key_size, value_size].
template <typename T>
struct LinearAttention : LinearAttentionPlan {
  bool has_present;
  int64_t state, memory;  // offsets in scratch, in bytes

  static LinearAttention bind(BindContext& c) {
    LinearAttention a{LinearAttentionPlan::make(c), c.has_output(1), 0, 0};
    const int64_t states = a.batch * a.heads.kv;
    ScratchLayout layout;
    a.state = layout.take(static_cast<size_t>(states * a.key_size * a.value_size) * sizeof(float));
    a.memory = layout.take(static_cast<size_t>(states * a.value_size) * sizeof(float));
    c.request_scratch(layout.total());
    return a;
  }
  void run(RunContext& c) const {
    const int64_t elements = key_size * value_size;
    parallel_for(c.pool(), batch * heads.kv, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* S = reinterpret_cast<float*>(scratch_at(c, state)) + i * elements;
        load_state(c, i, S);
        float* room = reinterpret_cast<float*>(scratch_at(c, memory)) + i * value_size;
        for (int64_t slot = 0; has_present && slot + length < slots(); ++slot) store_state(c, i, slot, nullptr);
        if (has_present && length == 0) store_state(c, i, slots() - 1, S);
        for (int64_t t = 0; t < length; ++t) {
          step(c, i / heads.kv, i % heads.kv, t, S, room);
          if (const int64_t slot = slots() - length + t; has_present && slot >= 0) store_state(c, i, slot, S);
        }
      }
    });
  }
  void load_state(RunContext& c, int64_t i, float* S) const {
    const int64_t elements = key_size * value_size;
    std::fill_n(S, elements, 0.0f);
    if (!has_past) return;
    visit_dtype<StateTypes>(state_dtype, [&]<typename U>() {
      const U* past = c.in<U>(kPast) + ((slots() - 1) * batch * heads.kv + i) * elements;
      for (int64_t e = 0; e < elements; ++e) S[e] = static_cast<float>(past[e]);
    });
  }
  /// Stores a state in the output `present`; zeros if S is null.
  void store_state(RunContext& c, int64_t i, int64_t slot, const float* S) const {
    const int64_t elements = key_size * value_size;
    visit_dtype<StateTypes>(state_dtype, [&]<typename U>() {
      U* present = c.out<U>(1) + (slot * batch * heads.kv + i) * elements;
      for (int64_t e = 0; e < elements; ++e) present[e] = S ? static_cast<U>(S[e]) : U{};
    });
  }
  void step(RunContext& c, int64_t b, int64_t h, int64_t t, float* S, float* row) const {
    const int64_t token = b * length + t, head = token * heads.kv + h;
    const T *key = c.in<T>(kKey) + head * key_size, *value = c.in<T>(kValue) + head * value_size;
    if (gated()) {
      const T* decay = c.in<T>(kDecay) + (decay_per_key ? head * key_size : head);
      for (int64_t k = 0; k < key_size; ++k) {
        const float factor = std::exp(static_cast<float>(decay[decay_per_key ? k : 0]));
        for (int64_t v = 0; v < value_size; ++v) S[k * value_size + v] *= factor;
      }
    }
    // `row` times the key is added to the state. It is the value or, by the delta rule, beta times (value - the state's value for the key).
    for (int64_t v = 0; v < value_size; ++v) row[v] = static_cast<float>(value[v]);
    if (delta()) {
      const float beta = static_cast<float>(c.in<T>(kBeta)[beta_per_head ? head : token]);
      for (int64_t k = 0; k < key_size; ++k) {
        const float factor = static_cast<float>(key[k]);
        for (int64_t v = 0; v < value_size; ++v) row[v] -= factor * S[k * value_size + v];
      }
      for (int64_t v = 0; v < value_size; ++v) row[v] *= beta;
    }
    for (int64_t k = 0; k < key_size; ++k) {
      const float factor = static_cast<float>(key[k]);
      for (int64_t v = 0; v < value_size; ++v) S[k * value_size + v] += factor * row[v];
    }
    const int64_t group = heads.outputs() / heads.kv, readers = heads.outputs() / heads.q;
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head_of_output = h * group + g;
      const T* query = c.in<T>(kQuery) + (token * heads.q + head_of_output / readers) * key_size;
      std::fill_n(row, value_size, 0.0f);
      for (int64_t k = 0; k < key_size; ++k) {
        const float factor = static_cast<float>(query[k]) * scale;
        for (int64_t v = 0; v < value_size; ++v) row[v] += factor * S[k * value_size + v];
      }
      T* y = c.out<T>(0) + (token * heads.outputs() + head_of_output) * value_size;
      for (int64_t v = 0; v < value_size; ++v) y[v] = static_cast<T>(row[v]);
    }
  }
};

Cost linear_attention_cost(const ShapeContext& c) {
  const Shape &q = c.shape(kQuery), &v = c.shape(kValue);
  const double value_size = static_cast<double>(v[2]) / static_cast<double>(std::max<int64_t>(c.get_int("kv_num_heads", 1), 1));
  return {6 * static_cast<double>(q.num_elements()) * value_size, c.size_bytes(kQuery) + c.size_bytes(kKey) + 2 * c.size_bytes(kValue)};
}

// CausalConvWithState.

void infer_causal_conv(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_output(1)) return;
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(1, c.dtype(0));
  for (int i : {0, 1})
    if (c.rank(i) != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("the {} is of rank {}, not 3", i == 0 ? "input" : "weight", c.rank(i)));
  unify(c.shape(0)[1], c.shape(1)[0], "channels of input and weight");
  c.set_output(1, c.dtype(0), {c.shape(0)[0], c.shape(0)[1], (c.shape(1)[2] - 1) * Dim(c.get_int("dilation", 1))});
}

template <typename T>
struct CausalConvWithState {
  int64_t batch, channels, length, taps, dilation, state;
  bool has_present, silu;

  static CausalConvWithState bind(BindContext& c) {
    const Shape &x = c.shape(0), &w = c.shape(1);
    if (x.rank() != 3 || w.rank() != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("the input is {}, the weight {}; both have rank 3", to_string(x), to_string(w)));
    CausalConvWithState k{x[0], x[1], x[2], w[2], c.get_int("dilation", 1), 0, c.has_output(1), false};
    check_equal(w[0], k.channels, "channels of input and weight"),
        check_equal(w[1], 1, "the weight's second extent, of a depthwise convolution");
    if (k.taps < 1) throw Error(ErrorCode::invalid_argument, "the weight has no taps");
    if (c.has_input(2)) check_equal(c.num_elements(2), k.channels, "bias and channels");
    k.state = checked_mul(k.taps - 1, k.dilation);
    if (c.has_input(3)) check_equal(c.num_elements(3), checked_mul(k.batch * k.channels, k.state), "elements of past_state");
    const std::string_view activation = c.get_string("activation", "none");
    if (activation != "none" && activation != "silu" && activation != "swish")
      throw Error(ErrorCode::invalid_argument, fmt::format("activation is \"{}\", not none, silu or swish", activation));
    k.silu = activation != "none";
    return k;
  }
  void run(RunContext& c) const {
    const T *x = c.in<T>(0), *w = c.in<T>(1), *bias = c.in<T>(2), *past = c.in<T>(3);
    T *y = c.out<T>(0), *present = has_present ? c.out<T>(1) : nullptr;
    parallel_for(c.pool(), batch * channels, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, length * taps)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     // Returns element i of the sequence that consists of the past and then the input.
                     auto at = [&](int64_t i) -> float {
                       if (i >= state) return static_cast<float>(x[row * length + i - state]);
                       return past ? static_cast<float>(past[row * state + i]) : 0;
                     };
                     const T* filter = w + row % channels * taps;
                     const float start = bias ? static_cast<float>(bias[row % channels]) : 0;
                     for (int64_t t = 0; t < length; ++t) {
                       float sum = start;
                       for (int64_t k = 0; k < taps; ++k) sum += at(t + k * dilation) * static_cast<float>(filter[k]);
                       if (silu) sum = sum / (1 + std::exp(-sum));
                       y[row * length + t] = static_cast<T>(sum);
                     }
                     if (present)
                       for (int64_t i = 0; i < state; ++i) present[row * state + i] = static_cast<T>(at(length + i));
                   }
                 });
  }
};

// Reshapes x to [batch, length, rest], where batch and length are the first extents of `query`.
ValueId by_tokens(GradientContext& g, ValueId x, ValueId query) {
  const ValueId tokens = g.op("Shape", {query}, {{"start", int64_t{0}}, {"end", int64_t{2}}});
  return g.op("Reshape", {x, g.op("Concat", {tokens, g.ints({-1})}, {{"axis", int64_t{0}}})});
}

Gradients linear_attention_gradient(GradientContext& g) {
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < 6; ++i) inputs.push_back(widened(g, g.input(i)));
  // Broadcasts beta to one element per head, even if all heads share one.
  const ValueId beta =
      inputs[kBeta] == kNoValue || rank_of(g, inputs[kBeta]) == 3 ? inputs[kBeta] : by_tokens(g, inputs[kBeta], inputs[kQuery]);
  if (beta != kNoValue) inputs[kBeta] = g.op("Expand", {beta, g.ints({1, 1, heads_of(g.attributes()).kv})});
  inputs.push_back(widened(g, g.grad_output(0)));
  inputs.push_back(widened(g, g.grad_output(1)));
  const Attributes attributes = g.attributes();
  Gradients result = g.op_n("LinearAttentionGrad", std::move(inputs), 6, attributes, "treadle");
  const std::string_view rule = attributes.get_string("update_rule", "gated_delta");
  for (size_t i : {3, 4, 5})
    if (g.input(i) == kNoValue) result[i] = kNoValue;
  if (rule == "linear" || rule == "delta") result[4] = kNoValue;
  if (rule == "linear" || rule == "gated") result[5] = kNoValue;
  if (result[5] != kNoValue) result[5] = g.reshape_like(g.unbroadcast(result[5], beta), g.input(5));
  return narrowed(g, std::move(result));
}

// Differentiates a depthwise convolution over past and input in one sequence, followed by y sigmoid(y) if that activation is used. The
// output `present` is the end of that sequence.
Gradients causal_conv_with_state_gradient(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), w = widened(g, g.input(1)), bias = widened(g, g.input(2));
  const Type filters = g.type(w);
  if (!filters.has_rank() || filters.rank() != 3 || !(*filters.shape)[0].is_const() || !(*filters.shape)[2].is_const())
    throw Error(ErrorCode::not_implemented, fmt::format("the gradient needs the extents of the weight, which is {}", to_string(filters)));
  const int64_t channels = (*filters.shape)[0].value(), state = (*filters.shape)[2].value() - 1;
  const auto axis_of_x = [&](int64_t axis) { return g.op("Shape", {x}, {{"start", axis}, {"end", axis + 1}}); };
  auto joined = [&](std::vector<ValueId> parts, int64_t axis) { return g.op("Concat", std::move(parts), {{"axis", axis}}); };
  const ValueId past = g.input(3) != kNoValue ? widened(g, g.input(3))
                                              : g.op("Expand", {g.scalar(0, x), joined({axis_of_x(0), g.ints({channels, state})}, 0)});
  const ValueId all = state > 0 ? joined({past, x}, 2) : x;
  Attributes attributes{{"group", channels}};
  Gradients result(4, kNoValue);
  ValueId flow = kNoValue;
  if (ValueId dy = widened(g, g.grad_output(0)); dy != kNoValue) {
    if (g.attributes().get_string("activation", "none") != "none") {
      const ValueId sum = g.op("Conv", bias == kNoValue ? std::vector{all, w} : std::vector{all, w, bias}, attributes);
      const ValueId gate = g.op("Sigmoid", {sum}), one = g.scalar(1, sum);
      dy = g.mul(dy, g.mul(gate, g.add(one, g.mul(sum, g.sub(one, gate)))));
    }
    flow = g.op("ConvGradInput", {dy, w, g.shape_of(all)}, attributes, "treadle");
    result[1] = g.op("ConvGradWeights", {dy, all, g.shape_of(w)}, attributes, "treadle");
    if (bias != kNoValue) result[2] = g.reduce_sum(dy, {0, 2}, /*keepdims=*/false);
  }
  if (const ValueId dpresent = widened(g, g.grad_output(1)); dpresent != kNoValue && state > 0) {
    const ValueId at_end = g.op("Pad", {dpresent, joined({g.ints({0, 0}), axis_of_x(2), g.ints({0, 0, 0})}, 0)});
    flow = flow == kNoValue ? at_end : g.add(flow, at_end);
  }
  if (flow == kNoValue) return {};
  result[0] = state > 0 ? g.op("Slice", {flow, g.ints({state}), g.op("Shape", {all}, {{"start", int64_t{2}}}), g.ints({2})}) : flow;
  if (g.input(3) != kNoValue) {
    const ValueId start = state > 0 ? g.op("Slice", {flow, g.ints({0}), g.ints({state}), g.ints({2})}) : zeros_like(g, past);
    result[3] = g.reshape_like(start, past);
  }
  return narrowed(g, std::move(result));
}

}  // namespace

std::vector<OpDef> linear_attention_ops() {
  OpDef linear{.name = "LinearAttention",
               .since = {27},
               .inputs = {{"query", kTypes, "T"},
                          {"key", kTypes, "T"},
                          {"value", kTypes, "T"},
                          {"past_state", kTypes, "S", Presence::optional},
                          {"decay", kTypes, "T", Presence::optional},
                          {"beta", kTypes, "T", Presence::optional}},
               .outputs = {{"output", kTypes, "T"}, {"present_state", kTypes, "S", Presence::optional}},
               .attributes = {{"chunk_size", int64_t{64}},
                              {"kv_num_heads", AttributeDef::Required{}},
                              {"q_num_heads", AttributeDef::Required{}},
                              {"scale", 0.0f},
                              {"update_rule", std::string_view("gated_delta")}},
               .infer = infer_linear_attention,
               .cost = linear_attention_cost,
               .kernels = typed<LinearAttention, float, Float16, BFloat16>(),
               .gradient = linear_attention_gradient};
  OpDef windowed = linear;  // for an attribute that com.microsoft adds
  windowed.name = "WindowedLinearAttention", windowed.domain = "treadle", windowed.since = {1};
  windowed.attributes.push_back({"state_window", AttributeDef::Required{}});
  OpDef conv{.name = "CausalConvWithState",
             .since = {27},
             .inputs = {{"input", kTypes, "T"},
                        {"weight", kTypes, "T"},
                        {"bias", kTypes, "T", Presence::optional},
                        {"past_state", kTypes, "T", Presence::optional}},
             .outputs = {{"output", kTypes, "T"}, {"present_state", kTypes, "T", Presence::optional}},
             .attributes = {{"activation", std::string_view("none")}},
             .infer = infer_causal_conv,
             .cost = elementwise_cost<8>,
             .kernels = typed<CausalConvWithState, float, Float16, BFloat16>(),
             .gradient = causal_conv_with_state_gradient};
  OpDef dilated = conv;  // for attributes that com.microsoft adds
  dilated.name = "DilatedCausalConv", dilated.domain = "treadle", dilated.since = {1}, dilated.gradient = nullptr;
  dilated.attributes.push_back({"dilation", int64_t{1}, between(1, INT32_MAX)});
  return {linear, windowed, conv, dilated};
}

}  // namespace treadle::ops
