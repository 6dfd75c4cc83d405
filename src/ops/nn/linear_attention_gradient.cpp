// Implements LinearAttentionGrad of the treadle domain, and the gradient rules of LinearAttention and CausalConvWithState.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/nn/linear_attention.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kFloat{DType::float32};

enum Gradient : int { kDY = 6, kDPresent = 7 };

void infer_linear_attention_grad(InferContext& c) {
  for (int i = 0; i <= kBeta; ++i) {
    if (!c.has_output(i)) continue;
    if (c.has_input(i))
      c.set_output(i, c.input(i));
    else
      c.set_output(i, DType::float32, {0});
  }
}

constexpr int kGradientOf[] = {kQuery, kKey, kValue, kPast, kDecay, kBeta};

Differentiated differentiated_attention(GradientContext& g, std::span<const ValueId> operands) {
  return {.ys = linear_attention_as_scan(g, operands), .first_gradient = kDY, .xs = kGradientOf};
}

// Goes from the last token to the first. Let S' be the state after the decay, and r the row that is added to it, multiplied by the key:
//   S = S' + k r^T, r = beta (v - S'^T k) or v, y = scale S^T q.
//
// The backward pass needs the states in reverse order. To save memory, it keeps only the state at the beginning of each chunk of tokens,
// and recomputes the other states of a chunk.
struct LinearAttentionGrad {
  LinearAttentionPlan plan;
  int64_t chunk, groups, floats;  // tokens per chunk; tasks per batch element; floats of scratch per task

  static LinearAttentionGrad bind(BindContext& c) {
    LinearAttentionGrad k{LinearAttentionPlan::make(c), 1, 0, 0};
    const LinearAttentionPlan& p = k.plan;
    if (p.delta()) check_equal(c.num_elements(kBeta), p.batch * p.length * p.heads.kv, "elements of beta, and tokens times heads");
    if (c.has_input(kDY)) check_equal(c.num_elements(kDY), p.batch * p.length * p.heads.outputs() * p.value_size, "elements of dY");
    if (c.has_input(kDPresent))
      check_equal(c.num_elements(kDPresent), p.slots() * p.batch * p.heads.kv * p.key_size * p.value_size, "elements of dpresent");
    while (k.chunk * k.chunk < p.length) ++k.chunk;
    k.groups = std::min(p.heads.q, p.heads.kv);
    const int64_t chunks = (p.length + k.chunk - 1) / k.chunk;
    k.floats = (chunks + k.chunk + 3) * p.key_size * p.value_size + 3 * p.value_size;
    ScratchLayout layout;
    layout.take(static_cast<size_t>(p.batch * k.groups * k.floats) * sizeof(float));
    c.request_scratch(layout.total());
    return k;
  }

  /// One key head of one batch element, with pointers to its working memory.
  struct Head {
    RunContext& c;
    int64_t batch, head;
    float *kept, *states, *flow, *decayed, *added, *missing, *dadded;
  };
  int64_t elements() const { return plan.key_size * plan.value_size; }
  int64_t row_of(const Head& h, int64_t t) const { return (h.batch * plan.length + t) * plan.heads.kv + h.head; }
  float beta_of(const Head& h, int64_t t) const { return h.c.in<float>(kBeta)[row_of(h, t)]; }
  float decay_of(const Head& h, int64_t t, int64_t k) const {
    return std::exp(h.c.in<float>(kDecay)[plan.decay_per_key ? row_of(h, t) * plan.key_size + k : row_of(h, t)]);
  }

  void run(RunContext& c) const {
    // Heads that share a query or a key add to the same gradients, so one task computes all these heads.
    parallel_for(c.pool(), plan.batch * groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        float* room = c.scratch<float>() + task * floats;
        const int64_t per_group = plan.heads.kv / groups;
        clear_queries(c, task / groups, task % groups);
        for (int64_t i = 0; i < per_group; ++i) {
          Head h{c, task / groups, task % groups * per_group + i, room, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
          h.states = h.kept + (plan.length + chunk - 1) / chunk * elements();
          h.flow = h.states + (chunk + 1) * elements(), h.decayed = h.flow + elements();
          h.added = h.decayed + elements(), h.missing = h.added + plan.value_size, h.dadded = h.missing + plan.value_size;
          differentiate(h);
        }
      }
    });
  }
  void clear_queries(RunContext& c, int64_t batch, int64_t group) const {
    const int64_t features = plan.heads.q / groups * plan.key_size;
    for (int64_t t = 0; t < plan.length; ++t)
      std::fill_n(c.out<float>(kQuery) + ((batch * plan.length + t) * groups + group) * features, features, 0.0F);
  }

  void differentiate(Head& h) const {
    const int64_t size = elements(), place = h.batch * plan.heads.kv + h.head, stride = plan.batch * plan.heads.kv * size;
    float* S = h.states;
    std::fill_n(S, size, 0.0F);
    if (plan.has_past) std::copy_n(h.c.in<float>(kPast) + (plan.slots() - 1) * stride + place * size, size, S);
    for (int64_t t = 0; t < plan.length; ++t) {
      if (t % chunk == 0) std::copy_n(S, size, h.kept + t / chunk * size);
      advance(h, t, S, S);
    }
    std::fill_n(h.flow, size, 0.0F);
    auto add_present = [&](int64_t slot) {
      const float* flow = h.c.in<float>(kDPresent);
      if (slot < 0 || !flow) return;
      flow += slot * stride + place * size;
      for (int64_t e = 0; e < size; ++e) h.flow[e] += flow[e];
    };
    if (plan.length == 0) add_present(plan.slots() - 1);
    for (int64_t t = plan.length - 1; t >= 0; --t) {
      const int64_t first = t / chunk * chunk;
      if (t == plan.length - 1 || t % chunk == chunk - 1) {
        std::copy_n(h.kept + t / chunk * size, size, h.states);
        for (int64_t i = first; i <= t; ++i) advance(h, i, h.states + (i - first) * size, h.states + (i - first + 1) * size);
      }
      add_present(plan.slots() - plan.length + t);
      go_back(h, t, h.states + (t - first) * size, h.states + (t - first + 1) * size);
    }
    if (!plan.has_past) return;
    float* dpast = h.c.out<float>(kPast);
    for (int64_t slot = 0; slot + 1 < plan.slots(); ++slot) std::fill_n(dpast + slot * stride + place * size, size, 0.0F);
    std::copy_n(h.flow, size, dpast + (plan.slots() - 1) * stride + place * size);
  }

  /// Computes `decayed` and `added` for a token. `missing` is the token's value minus the value that the state has for the key.
  void meet_token(const Head& h, int64_t t, const float* S) const {
    const int64_t V = plan.value_size;
    const float *key = h.c.in<float>(kKey) + row_of(h, t) * plan.key_size, *value = h.c.in<float>(kValue) + row_of(h, t) * V;
    std::copy_n(value, V, h.missing);
    for (int64_t k = 0; k < plan.key_size; ++k) {
      const float factor = plan.gated() ? decay_of(h, t, k) : 1;
      for (int64_t v = 0; v < V; ++v) {
        const float state = h.decayed[k * V + v] = S[k * V + v] * factor;
        if (plan.delta()) h.missing[v] -= key[k] * state;
      }
    }
    const float beta = plan.delta() ? beta_of(h, t) : 1;
    for (int64_t v = 0; v < V; ++v) h.added[v] = beta * h.missing[v];
  }
  /// Computes the state after a token from the state before it. Both may be in the same memory.
  void advance(const Head& h, int64_t t, const float* S, float* next) const {
    meet_token(h, t, S);
    const float* key = h.c.in<float>(kKey) + row_of(h, t) * plan.key_size;
    for (int64_t k = 0; k < plan.key_size; ++k)
      for (int64_t v = 0; v < plan.value_size; ++v)
        next[k * plan.value_size + v] = h.decayed[k * plan.value_size + v] + key[k] * h.added[v];
  }

  void from_outputs(const Head& h, int64_t t, const float* S) const {
    const int64_t V = plan.value_size, token = h.batch * plan.length + t;
    const int64_t per_key = plan.heads.outputs() / plan.heads.kv, readers = plan.heads.outputs() / plan.heads.q;
    for (int64_t g = h.head * per_key; g < (h.head + 1) * per_key; ++g) {
      const int64_t at = (token * plan.heads.q + g / readers) * plan.key_size;
      const float *query = h.c.in<float>(kQuery) + at, *dy = h.c.in<float>(kDY) + (token * plan.heads.outputs() + g) * V;
      float* dquery = h.c.out<float>(kQuery) + at;
      for (int64_t k = 0; k < plan.key_size; ++k) {
        float sum = 0;
        for (int64_t v = 0; v < V; ++v) {
          sum += S[k * V + v] * dy[v];
          h.flow[k * V + v] += plan.scale * query[k] * dy[v];
        }
        dquery[k] += plan.scale * sum;
      }
    }
  }

  /// Backpropagates through one token: `flow` was the gradient of the state after the token and becomes that of the state before it.
  void go_back(const Head& h, int64_t t, const float* before, const float* after) const {
    const int64_t V = plan.value_size, row = row_of(h, t);
    if (h.c.in<float>(kDY)) from_outputs(h, t, after);
    meet_token(h, t, before);
    const float* key = h.c.in<float>(kKey) + row * plan.key_size;
    float *dkey = h.c.out<float>(kKey) + row * plan.key_size, *dvalue = h.c.out<float>(kValue) + row * V;
    std::fill_n(h.dadded, V, 0.0F);
    for (int64_t k = 0; k < plan.key_size; ++k) {
      float sum = 0;
      for (int64_t v = 0; v < V; ++v) {
        sum += h.flow[k * V + v] * h.added[v];
        h.dadded[v] += h.flow[k * V + v] * key[k];
      }
      dkey[k] = sum;
    }
    const float beta = plan.delta() ? beta_of(h, t) : 1;
    float dbeta = 0;
    for (int64_t v = 0; v < V; ++v) dbeta += h.dadded[v] * h.missing[v], dvalue[v] = beta * h.dadded[v];
    if (plan.delta()) {
      h.c.out<float>(kBeta)[row] = dbeta;
      for (int64_t k = 0; k < plan.key_size; ++k) {
        float sum = 0;
        for (int64_t v = 0; v < V; ++v) {
          sum += h.decayed[k * V + v] * dvalue[v];
          h.flow[k * V + v] -= key[k] * dvalue[v];
        }
        dkey[k] -= sum;
      }
    }
    if (plan.gated()) through_decay(h, t);
  }
  void through_decay(const Head& h, int64_t t) const {
    const int64_t V = plan.value_size, row = row_of(h, t);
    float of_head = 0;
    for (int64_t k = 0; k < plan.key_size; ++k) {
      float sum = 0;
      const float factor = decay_of(h, t, k);
      for (int64_t v = 0; v < V; ++v) {
        sum += h.flow[k * V + v] * h.decayed[k * V + v];
        h.flow[k * V + v] *= factor;
      }
      of_head += sum;
      if (plan.decay_per_key) h.c.out<float>(kDecay)[row * plan.key_size + k] = sum;
    }
    if (!plan.decay_per_key) h.c.out<float>(kDecay)[row] = of_head;
  }
};

}  // namespace

std::vector<OpDef> linear_attention_gradient_ops() {
  const Presence optional = Presence::optional;
  return {{.name = "LinearAttentionGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"query", kFloat},
                      {"key", kFloat},
                      {"value", kFloat},
                      {"past_state", kFloat, "", optional},
                      {"decay", kFloat, "", optional},
                      {"beta", kFloat, "", optional},
                      {"dY", kFloat, "", optional},
                      {"dpresent", kFloat, "", optional}},
           .outputs = {{"dquery", kFloat},
                       {"dkey", kFloat},
                       {"dvalue", kFloat},
                       {"dpast", kFloat, "", optional},
                       {"ddecay", kFloat, "", optional},
                       {"dbeta", kFloat, "", optional}},
           .attributes = {{"chunk_size", int64_t{64}},
                          {"kv_num_heads", AttributeDef::Required{}},
                          {"q_num_heads", AttributeDef::Required{}},
                          {"scale", 0.0F},
                          {"state_window", int64_t{0}},
                          {"update_rule", std::string_view("gated_delta")}},
           .infer = infer_linear_attention_grad,
           .kernels = {kernel<LinearAttentionGrad>()},
           .differentiated = differentiated_attention}};
}

}  // namespace treadle::ops
