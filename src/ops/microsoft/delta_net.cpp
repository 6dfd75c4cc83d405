// Implements GatedDeltaNet (com.microsoft 1), the recurrence of gated linear attention, for packed sequences.
#include <algorithm>
#include <cmath>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/widen_floats.h"

namespace treadle::ops {
namespace {

enum Input : int { kQuery, kKey, kValue, kEnds, kDecay, kBeta, kState, kALog, kBias, kCaptured, kActive };
enum Output : int { kY, kFinal, kUpdate };

enum class Gate : uint8_t { none, softplus, sigmoid };

/// The node's attributes.
struct Rules {
  bool gated, delta;
  Gate gate;
  bool sigmoid_beta, normalized;
  int64_t slots;
  float scale, lower_bound;

  template <typename Context>
  static Rules of(const Context& c) {
    const std::string_view rule = c.get_string("update_rule", "gated_delta"), gate = c.get_string("gate_activation", "none");
    Rules r{};
    r.gated = rule.starts_with("gated"), r.delta = rule.ends_with("delta");
    if (gate != "none") r.gate = gate == "softplus" || gate == "qwen" ? Gate::softplus : Gate::sigmoid;
    r.sigmoid_beta = c.get_string("beta_activation", "none") == "sigmoid", r.normalized = c.get_int("qk_l2_norm", 0) != 0;
    r.slots = c.get_int("state_update_capacity", 0);
    r.scale = c.get_float("scale", 0), r.lower_bound = c.get_float("gate_lower_bound", -5);
    if (!(r.lower_bound < 0) || !std::isfinite(r.lower_bound))
      throw Error(ErrorCode::invalid_argument, fmt::format("gate_lower_bound is {}; expected a negative number", r.lower_bound));
    if (r.gated != c.has_input(kDecay) || r.delta != c.has_input(kBeta))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("update_rule = \"{}\" and the inputs decay and beta do not fit each other", rule));
    for (int i : {kALog, kBias})
      if (c.has_input(i) != (r.gate != Gate::none))
        throw Error(ErrorCode::invalid_argument, fmt::format("a_log and dt_bias go with gate_activation, which is \"{}\"", gate));
    if (c.has_input(kCaptured) != (r.slots > 0))
      throw Error(ErrorCode::invalid_argument, fmt::format("capture_count goes with a state_update_capacity above 0; it is {}", r.slots));
    if (c.has_input(kKey) != c.has_input(kValue)) throw Error(ErrorCode::invalid_argument, "key and value come together, or in query");
    if (!c.has_input(kKey) && !c.has_input(kState))
      throw Error(ErrorCode::invalid_argument, "without initial_state, key and value cannot be in query");
    return r;
  }
};

void infer(InferContext& c) {
  const Rules rules = Rules::of(c);
  c.set_output_dtype(kY, c.dtype(kQuery));
  for (int i : {kFinal, kUpdate})
    if (c.has_output(i)) c.set_output_dtype(i, DType::float32);
  const bool packed = !c.has_input(kKey), with_state = c.has_input(kState) && c.has_rank(kState);
  if (!c.has_rank(kQuery) || (packed ? !with_state : !c.has_rank(kValue))) return;
  const SymbolicShape& q = c.shape(kQuery);
  const size_t lead = q.size() - (packed ? 1 : 2);
  if (lead < 1 || lead > 2 || (!packed && c.shape(kValue).size() != q.size()))
    throw Error(ErrorCode::invalid_argument, fmt::format("query is {}", to_string(c.input(kQuery))));
  const SymbolicShape& v = packed ? c.shape(kState) : c.shape(kValue);
  const Dim heads = packed ? v[1] : v[lead], value_size = packed ? v[2] : v[lead + 1], key_size = packed ? v[3] : q[lead + 1];
  const Dim shared = packed ? floor_div(q[lead] - heads * value_size, Dim(2) * key_size) : q[lead];
  SymbolicShape y(q.begin(), q.begin() + static_cast<std::ptrdiff_t>(lead));
  y.push_back(heads), y.push_back(value_size);
  c.set_output(kY, c.dtype(kQuery), std::move(y));
  Dim batch = with_state ? c.shape(kState)[0] : lead == 2 ? q[0] : c.data_dependent_dim("sequences");
  if (!with_state && c.has_input(kEnds) && c.has_rank(kEnds)) batch = c.shape(kEnds)[0] - Dim(1);
  if (c.has_output(kFinal)) c.set_output(kFinal, DType::float32, {batch, heads, value_size, key_size});
  if (!c.has_output(kUpdate) || (rules.gated && !c.has_rank(kDecay))) return;
  const bool per_key = rules.gated && c.shape(kDecay).size() == lead + 2;
  const Dim width = (per_key ? heads * key_size : heads) + shared * key_size + heads * value_size;
  c.set_output(kUpdate, DType::float32, {batch, Dim(rules.slots) * width});
}

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Goes through the tokens of a sequence and updates a state [value_size, key_size], separately for each head of each sequence.
struct GatedDeltaNet {
  Rules rules;
  int64_t batch, tokens, shared, heads, key_size, value_size;
  bool packed, per_key, bias_per_key, has_final;

  static GatedDeltaNet bind(BindContext& c) {
    GatedDeltaNet g{};
    g.rules = Rules::of(c);
    g.packed = !c.has_input(kKey), g.has_final = c.has_output(kFinal);
    const Shape& q = c.shape(kQuery);
    const int lead = q.rank() - (g.packed ? 1 : 2);
    if (lead < 1 || lead > 2) throw Error(ErrorCode::invalid_argument, fmt::format("query is {}", to_string(q)));
    g.tokens = q.product(0, lead);
    g.packed ? g.bind_packed(c, q) : g.bind_heads(c, q, lead);
    if (g.shared < 1 || g.heads < 1 || g.heads % g.shared != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} heads of values cannot share {} of keys", g.heads, g.shared));
    g.bind_batch(c, q, lead);
    g.bind_gates(c, q, lead);
    const bool idle = g.tokens == 0 || g.value_size == 0;
    const int64_t room = 3 * g.key_size + (g.has_final ? 0 : checked_mul(g.key_size, g.value_size));
    if (!idle) c.request_scratch(static_cast<size_t>(checked_mul(checked_mul(g.batch * g.heads, room), 4)));
    return g;
  }
  void bind_packed(const BindContext& c, const Shape& q) {
    const Shape& state = c.shape(kState);
    if (state.rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("initial_state is {}", to_string(state)));
    heads = state[1], value_size = state[2], key_size = state[3];
    const int64_t rest = q.back() - checked_mul(heads, value_size);
    shared = key_size > 0 && rest > 0 ? rest / key_size / 2 : 0;
    check_equal(rest, 2 * shared * key_size, "features of query behind those of values, and heads of queries and keys times their size");
  }
  void bind_heads(const BindContext& c, const Shape& q, int lead) {
    const Shape &k = c.shape(kKey), &v = c.shape(kValue);
    if (!(k == q)) throw Error(ErrorCode::invalid_argument, fmt::format("key is {}, query {}", to_string(k), to_string(q)));
    if (v.rank() != q.rank() || v[0] != q[0] || (lead == 2 && v[1] != q[1]))
      throw Error(ErrorCode::invalid_argument, fmt::format("value is {}, query {}", to_string(v), to_string(q)));
    shared = q[lead], key_size = q[lead + 1], heads = v[lead], value_size = v[lead + 1];
  }
  void bind_batch(const BindContext& c, const Shape& q, int lead) {
    if (c.has_input(kEnds)) {
      if (lead != 1) throw Error(ErrorCode::invalid_argument, "cu_seqlens needs tokens on one axis");
      batch = c.num_elements(kEnds) - 1;
      if (batch < 0) throw Error(ErrorCode::invalid_argument, "cu_seqlens has no element");
    } else if (lead == 2) {
      batch = q[0];
    } else {
      if (!c.has_input(kState))
        throw Error(ErrorCode::invalid_argument, "without cu_seqlens, initial_state says how many sequences there are");
      batch = c.shape(kState)[0];
      if (batch == 0 ? tokens != 0 : tokens % batch != 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("{} tokens for {} sequences of one length", tokens, batch));
    }
    const Shape state{batch, heads, value_size, key_size};
    if (c.has_input(kState) && !(c.shape(kState) == state))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("initial_state is {}, expected {}", to_string(c.shape(kState)), to_string(state)));
    if (c.has_input(kCaptured)) check_equal(c.num_elements(kCaptured), batch, "elements of capture_count and sequences");
    if (c.has_input(kActive)) check_equal(c.num_elements(kActive), 1, "elements of state_update_active and one");
  }
  void bind_gates(const BindContext& c, const Shape& q, int lead) {
    auto check = [&](int input, bool with_keys) {
      const Shape& s = c.shape(input);
      bool fits = s.rank() == lead + (with_keys ? 2 : 1) && s[lead] == heads && (!with_keys || s[lead + 1] == key_size);
      for (int i = 0; i < lead; ++i) fits = fits && s[i] == q[i];
      if (!fits)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the input {} is {}; query is {}, with {} heads of values", input, to_string(s), to_string(q), heads));
    };
    if (rules.gated) check(kDecay, per_key = c.shape(kDecay).rank() == lead + 2);
    if (rules.delta) check(kBeta, false);
    if (rules.gate == Gate::none) return;
    check_equal(c.num_elements(kALog), heads, "elements of a_log and heads of values");
    bias_per_key = per_key && c.num_elements(kBias) != heads;
    check_equal(c.num_elements(kBias), bias_per_key ? heads * key_size : heads, "elements of dt_bias and heads of values");
  }

  /// Returns the index of the first token of sequence b. For b = the number of sequences, returns the end of the last one.
  int64_t begin(const RunContext& c, int64_t b) const {
    const int32_t* ends = c.in<int32_t>(kEnds);
    return ends ? ends[b] : batch == 0 ? 0 : b * (tokens / batch);
  }
  int64_t row_of_updates() const { return rules.slots * ((per_key ? heads * key_size : heads) + shared * key_size + heads * value_size); }

  void run(RunContext& c) const {
    if (const int32_t* ends = c.in<int32_t>(kEnds)) {
      for (int64_t b = 0; b <= batch; ++b)
        if (ends[b] < (b == 0 ? 0 : ends[b - 1]) || ends[b] > (b == 0 ? 0 : tokens) || (b == batch && ends[b] != tokens))
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("cu_seqlens[{}] is {}; they grow from 0 to the {} tokens", b, ends[b], tokens));
    }
    if (c.out<float>(kUpdate)) std::fill_n(c.out<float>(kUpdate), batch * row_of_updates(), 0.0F);
    const int64_t elements = key_size * value_size;
    const bool idle = tokens == 0 || value_size == 0;
    if (idle && elements == 0) return;  // there is nothing to compute; returning saves a loop over many heads
    parallel_for(c.pool(), batch * heads, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float* room = idle ? nullptr : c.scratch<float>() + i * (3 * key_size + (has_final ? 0 : elements));
        float* state = has_final ? c.out<float>(kFinal) + i * elements : room ? room + 3 * key_size : nullptr;
        const float* old = c.in<float>(kState);
        if (state && !old) std::fill_n(state, elements, 0.0F);
        if (state && old && state != old + i * elements) std::copy_n(old + i * elements, elements, state);
        if (!idle) go_along(c, i / heads, i % heads, state, room);
      }
    });
  }
  void go_along(RunContext& c, int64_t b, int64_t h, float* state, float* room) const {
    const int64_t from = begin(c, b), to = begin(c, b + 1);
    const int32_t *captured = c.in<int32_t>(kCaptured), *active = c.in<int32_t>(kActive);
    const int64_t kept = captured && c.out<float>(kUpdate) && !(active && *active == 0) ? std::min<int64_t>(captured[b], rules.slots) : 0;
    float* update = kept > 0 ? c.out<float>(kUpdate) + b * row_of_updates() : nullptr;
    for (int64_t t = from; t < to; ++t) step(c, t, h, state, room, t - from < kept ? update : nullptr, t - from);
  }

  /// Copies a head's vector, scaled to length 1 if the node's attribute asks for normalization.
  void load(const float* from, float* to) const {
    const float factor = rules.normalized ? 1 / std::sqrt(dot(from, from, key_size) + 1e-12F) : 1;
    for (int64_t k = 0; k < key_size; ++k) to[k] = from[k] * factor;
  }
  float decay(const RunContext& c, int64_t t, int64_t h, int64_t k) const {
    float g = c.in<float>(kDecay)[per_key ? (t * heads + h) * key_size + k : t * heads + h];
    if (rules.gate == Gate::none) return std::exp(g);
    const float rate = std::exp(c.in<float>(kALog)[h]);
    g += c.in<float>(kBias)[bias_per_key ? h * key_size + k : h];
    // Computes softplus as max(g, 0) + log(1 + exp(-|g|)), where exp() cannot overflow.
    g = rules.gate == Gate::softplus ? -rate * (std::max(g, 0.0F) + std::log1p(std::exp(-std::abs(g))))
                                     : rules.lower_bound * sigmoid(rate * g);
    return std::exp(g);
  }
  /// @param update  memory for the sequence's state updates; null: they are not stored
  void step(RunContext& c, int64_t t, int64_t h, float* state, float* room, float* update, int64_t slot) const {
    const int64_t own = h / (heads / shared), width = packed ? 2 * shared * key_size + heads * value_size : shared * key_size;
    const float* q = c.in<float>(kQuery) + t * width;
    const float* k = packed ? q + shared * key_size : c.in<float>(kKey) + t * width;
    const float* v = packed ? q + 2 * shared * key_size : c.in<float>(kValue) + t * heads * value_size;
    float *query = room, *key = room + key_size, *factors = room + 2 * key_size;
    load(q + own * key_size, query), load(k + own * key_size, key);
    std::fill_n(factors, key_size, 1.0F);
    if (rules.gated)
      for (int64_t i = 0; i < key_size; ++i) factors[i] = i == 0 || per_key ? decay(c, t, h, i) : factors[0];
    float beta = rules.delta ? c.in<float>(kBeta)[t * heads + h] : 1;
    if (rules.sigmoid_beta && rules.delta) beta = sigmoid(beta);
    const float scale = rules.scale != 0 ? rules.scale : 1 / std::sqrt(static_cast<float>(std::max<int64_t>(key_size, 1)));
    const int64_t decays = per_key ? heads * key_size : heads;
    float* deltas = update ? update + rules.slots * (decays + shared * key_size) + (slot * heads + h) * value_size : nullptr;
    if (update) {
      std::copy_n(factors, per_key ? key_size : std::min<int64_t>(key_size, 1), update + slot * decays + (per_key ? h * key_size : h));
      if (h % (heads / shared) == 0) std::copy_n(key, key_size, update + rules.slots * decays + (slot * shared + own) * key_size);
    }
    float* y = c.out<float>(kY) + (t * heads + h) * value_size;
    for (int64_t i = 0; i < value_size; ++i) {
      float* row = state + i * key_size;
      for (int64_t j = 0; j < key_size; ++j) row[j] *= factors[j];
      float added = v[h * value_size + i];
      if (rules.delta) added = beta * (added - dot(row, key, key_size));
      for (int64_t j = 0; j < key_size; ++j) row[j] += added * key[j];
      y[i] = scale * dot(row, query, key_size);
      if (deltas) deltas[i] = added;
    }
  }
};

}  // namespace

std::vector<OpDef> microsoft_delta_net_ops() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16}, kInt32{DType::int32}, kFloat{DType::float32};
  auto optional = [](std::string_view name, TypeSet types, std::string_view type, Ranks ranks) {
    return Port{name, types, type, Presence::optional, ranks};
  };
  return {{.name = "GatedDeltaNet",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {{"query", kTypes, "T", Presence::required, of_ranks(2, 4)},
                      optional("key", kTypes, "T", of_ranks(3, 4)),
                      optional("value", kTypes, "T", of_ranks(3, 4)),
                      optional("cu_seqlens", kInt32, "", of_rank(1)),
                      optional("decay", kTypes, "G", of_ranks(2, 4)),
                      optional("beta", kTypes, "G", of_ranks(2, 3)),
                      optional("initial_state", kFloat, "", of_rank(4)),
                      optional("a_log", kFloat, "", of_rank(1)),
                      optional("dt_bias", kFloat, "", of_ranks(1, 2)),
                      optional("capture_count", kInt32, "", of_rank(1)),
                      maybe("state_update_active", kInt32)},
           .outputs = {{"output", kTypes, "T"}, maybe("final_state", kFloat), maybe("state_update", kFloat)},
           .attributes = {{"beta_activation", std::string_view("none"), one_of("none|sigmoid")},
                          {"chunk_size", int64_t{64}, between(1, INT32_MAX)},
                          {"gate_activation", std::string_view("none"), one_of("none|softplus|qwen|sigmoid|kda")},
                          {"gate_lower_bound", -5.0F},
                          {"qk_l2_norm", int64_t{0}, zero_or_one()},
                          {"scale", 0.0F},
                          {"state_update_capacity", int64_t{0}, between(0, 8)},
                          {"update_rule", std::string_view("gated_delta"), one_of("linear|gated|delta|gated_delta")}},
           .infer = infer,
           .alias = {may_reuse(kFinal, kState)},
           .kernels = {kernel<GatedDeltaNet>("plain", DType::float32)},
           .decompose = widen_floats}};
}

}  // namespace treadle::ops
