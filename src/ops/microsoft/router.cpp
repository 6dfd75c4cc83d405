// Implements MoEGroupRouter (com.microsoft 1). For each token, it finds the groups with the best experts and chooses experts among them.
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

enum Input : int { kLogits, kBias, kProjection };
enum Output : int { kProbs, kScores, kWeights };

void infer(InferContext& c) {
  const bool known = c.has_rank(kLogits);
  const Dim tokens = known ? product(c.shape(kLogits), 0, c.shape(kLogits).size() - 1) : c.data_dependent_dim("tokens");
  const int of_experts = c.has_input(kProjection) ? kProjection : kLogits;
  const Dim experts = !c.has_rank(of_experts)     ? c.data_dependent_dim("experts")
                      : of_experts == kProjection ? c.shape(kProjection)[0]
                                                  : c.shape(kLogits).back();
  const SymbolicShape y{tokens, experts};
  if (c.has_output(kProbs)) c.set_output(kProbs, c.dtype(kLogits), y);
  for (int i : {kScores, kWeights})
    if (c.has_output(i)) c.set_output(i, DType::float32, y);
}

struct MoEGroupRouter {
  int64_t tokens, experts, groups, chosen_groups, best, k;
  float sentinel;
  int max_threads;

  static MoEGroupRouter bind(BindContext& c) {
    const Shape& x = c.shape(kLogits);
    MoEGroupRouter r{x.product(0, x.rank() - 1),
                     x.back(),
                     c.get_int("n_group", 1),
                     c.get_int("topk_group", 1),
                     c.get_int("group_topk", 2),
                     c.get_int("top_k", 1),
                     c.get_float("router_sentinel", -10000),
                     c.max_threads()};
    check_equal(c.num_elements(kBias), r.experts, "elements of expert_bias and experts");
    if (r.groups > r.experts || r.experts % r.groups != 0 || r.chosen_groups > r.groups || r.k > r.experts)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("n_group = {}, topk_group = {} and top_k = {} of {} experts", r.groups, r.chosen_groups, r.k, r.experts));
    r.best = std::min(r.best, r.experts / r.groups);
    if (r.tokens > 0) c.request_scratch(static_cast<size_t>(checked_mul(checked_mul(r.experts, 16), r.max_threads)));
    return r;
  }
  void run(RunContext& c) const {
    const int64_t part = (tokens + max_threads - 1) / max_threads;
    parallel_for(c.pool(), max_threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t t = i * part; t < std::min(tokens, (i + 1) * part); ++t) route(c, t, c.scratch<float>() + i * experts * 4);
    });
  }
  /// Writes the indices of the `count` largest scores to the beginning of `order`. Of equal scores, the one with the lower index comes
  /// first.
  static void choose(int32_t* order, int64_t total, int64_t count, const float* scores) {
    for (int64_t i = 0; i < total; ++i) order[i] = static_cast<int32_t>(i);
    auto key = [&](int32_t i) { return std::isnan(scores[i]) ? -INFINITY : scores[i]; };
    std::partial_sort(order, order + count, order + total,
                      [&](int32_t a, int32_t b) { return key(a) > key(b) || (key(a) == key(b) && a < b); });
  }
  /// Chooses the experts of one token. @param room  memory for 4 floats per expert
  void route(RunContext& c, int64_t token, float* room) const {
    const float *x = c.in<float>(kLogits) + token * experts, *bias = c.in<float>(kBias);
    float *weights = room, *scores = room + experts, *of_groups = room + 2 * experts;
    auto* order = reinterpret_cast<int32_t*>(room + 3 * experts);
    for (int64_t e = 0; e < experts; ++e) weights[e] = 1 / (1 + std::exp(-x[e])), scores[e] = weights[e] + bias[e];
    if (float* out = c.out<float>(kScores)) std::copy_n(scores, experts, out + token * experts);
    if (float* out = c.out<float>(kWeights)) std::copy_n(weights, experts, out + token * experts);
    float* probs = c.out<float>(kProbs);
    if (!probs) return;
    probs += token * experts;
    const int64_t size = experts / groups;
    for (int64_t g = 0; g < groups; ++g) {
      choose(order, size, best, scores + g * size);
      of_groups[g] = 0;
      for (int64_t i = 0; i < best; ++i) of_groups[g] += scores[g * size + order[i]];
    }
    choose(order, groups, chosen_groups, of_groups);
    // Compacts the scores of the chosen groups, in ascending order of the groups.
    std::sort(order, order + chosen_groups);
    for (int64_t i = 0; i < chosen_groups; ++i) std::copy_n(scores + order[i] * size, size, scores + i * size);
    int32_t* group = reinterpret_cast<int32_t*>(of_groups);
    std::copy_n(order, chosen_groups, group);
    const int64_t open = chosen_groups * size, count = std::min(k, open);
    choose(order, open, count, scores);
    std::fill_n(probs, experts, sentinel);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t e = group[order[i] / size] * size + order[i] % size;
      probs[e] = std::log(std::max(weights[e], 1e-20F));
    }
  }
};

void decompose(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const bool full = d.wants(kScores) || d.wants(kWeights);
  if (full && (d.attributes().get_int("n_group", 1) != 1 || d.attributes().get_int("topk_group", 1) != 1))
    throw Error(ErrorCode::invalid_model, "selection_scores and router_weights need n_group = 1 and topk_group = 1");
  if (full && d.wants(kProbs)) throw Error(ErrorCode::invalid_model, "router_probs does not go with selection_scores and router_weights");
  if (!d.has(kProjection)) return widen_floats(graph, id);
  if (d.wants(kProbs)) throw Error(ErrorCode::invalid_model, "projection_weight goes with selection_scores and router_weights only");
  const ValueId logits =
      d.op("MatMul", {d.cast(d.in(kLogits), DType::float32),
                      d.op("Transpose", {d.cast(d.in(kProjection), DType::float32)}, {{"perm", std::vector<int64_t>{1, 0}}})});
  const auto y = d.op_n("MoEGroupRouter", {logits, d.in(kBias)}, 3, d.attributes(), kMicrosoft);
  d.give(kScores, y[kScores]), d.give(kWeights, y[kWeights]);
  d.finish();
}

}  // namespace

std::vector<OpDef> microsoft_router_ops() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16}, kFloat{DType::float32};
  return {{.name = "MoEGroupRouter",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {{"logits", kTypes, "T", Presence::required, of_ranks(2)},
                      {"expert_bias", kFloat},
                      {"projection_weight", kTypes, "T", Presence::optional, of_rank(2)}},
           .outputs = {maybe("router_probs", kTypes, "T"), maybe("selection_scores", kFloat), maybe("router_weights", kFloat)},
           .attributes = {{"group_topk", int64_t{2}, at_least(1)},
                          {"n_group", int64_t{1}, at_least(1)},
                          {"router_sentinel", -10000.0F},
                          {"top_k", AttributeDef::Required{}, at_least(1)},
                          {"topk_group", int64_t{1}, at_least(1)}},
           .infer = infer,
           .kernels = {kernel<MoEGroupRouter>("plain", DType::float32)},
           .decompose = decompose}};
}

}  // namespace treadle::ops
