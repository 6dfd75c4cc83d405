// Implements TreeEnsemble (ai.onnx.ml 5), TreeEnsembleClassifier and TreeEnsembleRegressor (1, 3, 5).
#include "kernels/trees/tree_ensemble.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <variant>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "core/values/dispatch.h"
#include "kernels/classical/scores.h"
#include "ops/list.h"
#include "ops/ml/common.h"
#include "ops/ml/tree_description.h"
#include "ops/ml/tree_model.h"

namespace treadle::ops {
namespace {

using kernels::PairFrom;
using kernels::PostTransform;
using kernels::TreeAggregate;
using kernels::TreeEnsemble;

constexpr int64_t kRowGrain = 1024;

TreeAggregate parse_aggregate(std::string_view name) {
  if (name == "SUM") return TreeAggregate::sum;
  if (name == "AVERAGE") return TreeAggregate::average;
  if (name == "MIN") return TreeAggregate::minimum;
  if (name == "MAX") return TreeAggregate::maximum;
  throw Error(ErrorCode::invalid_model, fmt::format("aggregate_function = \"{}\"; expected SUM, AVERAGE, MIN or MAX", name));
}

/// The shape of X. Both kernels of this file use it.
struct Rows {
  int64_t rows, columns;

  static Rows bind(BindContext& c) {
    auto [rows, columns] = rows_and_columns(c.shape(0));
    const auto& state = c.packed<TreeModel>();
    size_t element = std::holds_alternative<TreeEnsemble<double>>(state.trees) ? sizeof(double) : sizeof(float);
    c.request_scratch(static_cast<size_t>(checked_mul(rows, state.num_targets())) * element);
    return {rows, columns};
  }

  /// Evaluates all trees for every row, then calls finish(scores, row) for it.
  template <typename X, typename Finish>
  void run(RunContext& c, const TreeModel& state, Finish finish) const {
    std::visit(
        [&]<typename T>(const TreeEnsemble<T>& trees) {
          if constexpr (std::is_same_v<T, float> && std::is_same_v<X, double>) {
            throw Error(ErrorCode::internal, "trees in float for an input in double");
          } else if constexpr (std::is_same_v<T, double> && std::is_same_v<X, Float16>) {
            throw Error(ErrorCode::internal, "trees in double for an input in float16");
          } else {
            T* scores = c.scratch<T>();
            trees.run(c.in<X>(0), rows, columns, state.aggregate, scores, c.pool());
            int64_t count = trees.num_targets();
            parallel_for(c.pool(), rows, kRowGrain, [&](int64_t begin, int64_t end) {
              for (int64_t row = begin; row < end; ++row) finish(scores + row * count, row);
            });
          }
        },
        state.trees);
  }
};

template <typename X>
struct Regressor {
  Rows rows;
  bool float_output;  // TreeEnsembleRegressor always returns float32

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    bool in_double = c.dtype(0) == DType::float64;
    std::unique_ptr<TreeModel> state;
    if (c.node().op_type == "TreeEnsemble") {
      state = std::make_unique<TreeModel>(describe_tree_ensemble(a), in_double);
      state->aggregate = static_cast<TreeAggregate>(a.get_int("aggregate_function", 1));
      state->transform = static_cast<PostTransform>(a.get_int("post_transform", 0));
      if (state->aggregate > TreeAggregate::maximum)
        throw Error(ErrorCode::invalid_model, fmt::format("aggregate_function = {}; expected 0 to 3", a.get_int("aggregate_function", 1)));
      if (state->transform > PostTransform::probit)
        throw Error(ErrorCode::invalid_model, fmt::format("post_transform = {}; expected 0 to 4", a.get_int("post_transform", 0)));
      return state;
    }
    int64_t num_targets = a.get_int("n_targets", 1);
    LegacyTrees trees = describe_legacy_trees(a, "target", num_targets);
    state = std::make_unique<TreeModel>(trees.description, in_double || trees.in_double);
    state->base = std::move(trees.base_values);
    if (!state->base.empty() && state->base.size() != 1 && static_cast<int64_t>(state->base.size()) != num_targets)
      throw Error(ErrorCode::invalid_model, fmt::format("{} base_values for {} targets", state->base.size(), num_targets));
    state->aggregate = parse_aggregate(a.get_string("aggregate_function", "SUM"));
    state->transform = kernels::parse_post_transform(a.get_string("post_transform", "NONE"));
    return state;
  }

  static Regressor bind(BindContext& c) { return {Rows::bind(c), c.output_dtype(0) == DType::float32}; }

  void run(RunContext& c) const {
    const auto& state = c.packed<TreeModel>();
    int64_t count = state.num_targets();
    auto finish = [&](auto* out) {
      rows.run<X>(c, state, [&, out](auto* scores, int64_t row) {
        using T = std::remove_reference_t<decltype(*scores)>;
        if (!state.base.empty())
          for (int64_t k = 0; k < count; ++k) scores[k] += static_cast<T>(state.base[state.base.size() == 1 ? 0 : static_cast<size_t>(k)]);
        kernels::post_transform(state.transform, scores, count);
        using Y = std::remove_reference_t<decltype(*out)>;
        for (int64_t k = 0; k < count; ++k) out[row * count + k] = static_cast<Y>(scores[k]);
      });
    };
    if (float_output)
      finish(c.out<float>(0));
    else if constexpr (!std::is_integral_v<X>)
      finish(c.out<X>(0));
  }
};

// How scores become outputs. Where the specification says nothing, this follows ONNX's reference implementation:
//   Votes for several classes: transformed scores; the label is that of the first maximum.
//   Two labels, all votes for the first: the score s is that of the *second* label. Without negative weights, s is a probability, and the
//     second label wins above 0.5; otherwise s is a margin, and the second label wins above 0. The output is a pair of scores made from s.
//   Two labels, all votes for the second: the same thresholds, but the scores are not made into such a pair.
//   One label: one score; the label is 1 if the score is above 0, otherwise 0.
template <typename X>
struct Classifier {
  Rows rows;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    ClassLabels labels = ClassLabels::of(a, "classlabels_int64s");
    LegacyTrees trees = describe_legacy_trees(a, "class", labels.count());
    auto state = std::make_unique<TreeModel>(trees.description, c.dtype(0) == DType::float64 || trees.in_double);
    state->probabilities = true;
    for (size_t i = 0; i < trees.description.votes.size(); ++i) {
      const kernels::TreeVote& vote = trees.description.votes[i];
      if (i == 0) state->only_class = vote.target;
      if (vote.target != state->only_class) state->only_class = -1;
      if (vote.weight < 0) state->probabilities = false;
    }
    state->base = std::move(trees.base_values);
    bool one_score = labels.count() <= 2 && state->only_class >= 0;
    if (!state->base.empty() && static_cast<int64_t>(state->base.size()) != labels.count() && !(one_score && state->base.size() == 1))
      throw Error(ErrorCode::invalid_model, fmt::format("{} base_values for {} classes", state->base.size(), labels.count()));
    if (state->base.size() == 1 && labels.count() == 2) {  // the class that has the votes gets the base value
      double base = state->base[0];
      state->base = {0, 0};
      state->base[static_cast<size_t>(state->only_class)] = base;
    }
    state->labels = std::move(labels);
    state->transform = kernels::parse_post_transform(a.get_string("post_transform", "NONE"));
    return state;
  }

  static Classifier bind(BindContext& c) { return {Rows::bind(c)}; }

  void run(RunContext& c) const {
    const auto& state = c.packed<TreeModel>();
    int64_t count = state.num_targets();
    auto* out = c.out<float>(1);
    rows.run<X>(c, state, [&](auto* scores, int64_t row) {
      using T = std::remove_reference_t<decltype(*scores)>;
      for (size_t k = 0; k < state.base.size(); ++k) scores[k] += static_cast<T>(state.base[k]);
      T threshold = state.probabilities ? static_cast<T>(0.5) : T{0};
      if (count == 1) {
        if (state.labels.strings.empty())
          c.out<int64_t>(0)[row] = scores[0] > 0 ? 1 : 0;
        else
          c.out<std::string>(0)[row] = scores[0] > 0 ? state.labels.strings[0] : std::string();
        kernels::post_transform(state.transform, scores, 1);
      } else if (count == 2 && state.only_class == 0) {
        state.labels.write(c, 0, row, scores[0] > threshold ? 1 : 0);
        kernels::write_pair(state.transform, state.probabilities ? PairFrom::complement : PairFrom::negation, T{scores[0]}, scores);
      } else {
        int64_t best = std::max_element(scores, scores + count) - scores;
        if (count == 2 && state.only_class == 1) best = scores[1] > threshold ? 1 : 0;
        state.labels.write(c, 0, row, best);
        kernels::post_transform(state.transform, scores, count);
      }
      if (out)
        for (int64_t k = 0; k < count; ++k) out[row * count + k] = static_cast<float>(scores[k]);
    });
  }
};

void infer_classifier(InferContext& c) {
  ClassLabels labels = ClassLabels::of(c.attributes(), "classlabels_int64s");
  if (labels.count() == 0) throw Error(ErrorCode::invalid_model, "neither classlabels_int64s nor classlabels_strings is given");
  set_row_output(c, 0, labels.dtype());
  set_row_output(c, 1, DType::float32, Dim(labels.count()));
}

void infer_regressor(InferContext& c) {
  int64_t num_targets = c.get_int("n_targets", 1);
  if (num_targets < 1 || num_targets > INT32_MAX) throw Error(ErrorCode::invalid_model, fmt::format("n_targets = {}", num_targets));
  set_row_output(c, 0, c.node().op_type == "TreeEnsemble" ? c.dtype(0) : DType::float32, Dim(num_targets));
}

// Estimates one comparison per level of a tree. Trees are assumed to have about 256 nodes and eight levels.
Cost cost(const ShapeContext& c) {
  double trees = static_cast<double>(c.get_ints("nodes_featureids").size()) / 256 + 1;
  auto rows = static_cast<double>(c.shape(0).rank() == 2 ? c.shape(0)[0] : 1);
  return {.flops = rows * trees * 8, .bytes = c.size_bytes(0)};
}

std::vector<AttributeDef> legacy_attributes(std::initializer_list<AttributeDef> more) {
  std::vector<AttributeDef> attributes = {{"base_values"},
                                          {"base_values_as_tensor"},
                                          {"nodes_falsenodeids"},
                                          {"nodes_featureids"},
                                          {"nodes_hitrates"},
                                          {"nodes_hitrates_as_tensor"},
                                          {"nodes_missing_value_tracks_true"},
                                          {"nodes_modes"},
                                          {"nodes_nodeids"},
                                          {"nodes_treeids"},
                                          {"nodes_truenodeids"},
                                          {"nodes_values"},
                                          {"nodes_values_as_tensor"},
                                          {"post_transform", std::string_view("NONE")}};
  attributes.insert(attributes.end(), more);
  return attributes;
}

}  // namespace

std::vector<OpDef> ml_tree_ensemble_ops() {
  using Required = AttributeDef::Required;
  return {
      {.name = "TreeEnsembleClassifier",
       .domain = kMlDomain,
       .since = {1, 3, 5},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", kLabels}, {"Z", {DType::float32}}},
       .attributes = legacy_attributes({{"class_ids"},
                                        {"class_nodeids"},
                                        {"class_treeids"},
                                        {"class_weights"},
                                        {"class_weights_as_tensor"},
                                        {"classlabels_int64s"},
                                        {"classlabels_strings"}}),
       .infer = infer_classifier,
       .cost = cost,
       .kernels = typed<Classifier, float, double, int32_t, int64_t>()},
      {.name = "TreeEnsembleRegressor",
       .domain = kMlDomain,
       .since = {1, 3, 5},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = legacy_attributes({{"aggregate_function", std::string_view("SUM")},
                                        {"n_targets"},
                                        {"target_ids"},
                                        {"target_nodeids"},
                                        {"target_treeids"},
                                        {"target_weights"},
                                        {"target_weights_as_tensor"}}),
       .infer = infer_regressor,
       .cost = cost,
       .kernels = typed<Regressor, float, double, int32_t, int64_t>()},
      {.name = "TreeEnsemble",
       .domain = kMlDomain,
       .since = {5},
       .inputs = {{"X", {DType::float32, DType::float64, DType::float16}, "T"}},
       .outputs = {{"Y", {DType::float32, DType::float64, DType::float16}, "T"}},
       .attributes = {{"aggregate_function", int64_t{1}},
                      {"leaf_targetids", Required{}},
                      {"leaf_weights", Required{}},
                      {"membership_values"},
                      {"n_targets"},
                      {"nodes_falseleafs", Required{}},
                      {"nodes_falsenodeids", Required{}},
                      {"nodes_featureids", Required{}},
                      {"nodes_hitrates"},
                      {"nodes_missing_value_tracks_true"},
                      {"nodes_modes", Required{}},
                      {"nodes_splits", Required{}},
                      {"nodes_trueleafs", Required{}},
                      {"nodes_truenodeids", Required{}},
                      {"post_transform", int64_t{0}},
                      {"tree_roots", Required{}}},
       .infer = infer_regressor,
       .cost = cost,
       .kernels = typed<Regressor, float, double, Float16>()},
  };
}

}  // namespace treadle::ops
