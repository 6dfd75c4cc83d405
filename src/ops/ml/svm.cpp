// Implements SVMClassifier, SVMRegressor (ai.onnx.ml 1).
#include "kernels/classical/svm.h"

#include <algorithm>
#include <cmath>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "kernels/classical/scores.h"
#include "kernels/scratch_slots.h"
#include "ops/list.h"
#include "ops/ml/svm_model.h"

namespace treadle::ops {
namespace {

using kernels::PairFrom;
using kernels::PostTransform;
using kernels::ScratchSlots;
using kernels::SvmKernel;

constexpr int64_t kRowsPerTask = 8;

SvmKernel read_kernel(const Attributes& a) {
  SvmKernel kernel;
  std::string_view name = a.get_string("kernel_type", "LINEAR");
  if (name == "LINEAR")
    kernel.type = SvmKernel::Type::linear;
  else if (name == "POLY")
    kernel.type = SvmKernel::Type::poly;
  else if (name == "RBF")
    kernel.type = SvmKernel::Type::rbf;
  else if (name == "SIGMOID")
    kernel.type = SvmKernel::Type::sigmoid;
  else
    throw Error(ErrorCode::invalid_model, fmt::format("kernel_type = \"{}\"; expected LINEAR, POLY, RBF or SIGMOID", name));
  const auto& params = a.get_floats("kernel_params");
  if (!params.empty() && params.size() != 3)
    throw Error(ErrorCode::invalid_model, fmt::format("kernel_params has {} elements, expected 3", params.size()));
  if (params.size() == 3) kernel.gamma = params[0], kernel.coef0 = params[1], kernel.degree = params[2];
  return kernel;
}

/// The shape of X, and the size of each thread's part of the scratch memory. Both SVM operators use it.
template <typename X>
struct Rows {
  using T = MlComputeType<X>;
  int64_t rows, scratch_elements;
  int slots;

  /// @param per_row  number of scratch elements for evaluating one row, besides its similarities to the support vectors
  static Rows bind(BindContext& c, int64_t per_row) {
    const auto& model = c.packed<SvmModel<T>>();
    auto [rows, columns] = rows_and_columns(c.shape(0));
    model.check_columns(columns);
    const int64_t block = checked_mul(checked_add(columns, model.vectors.stride), kRowsPerTask);
    auto elements = static_cast<int64_t>(align_up(static_cast<size_t>(checked_add(per_row, block)), 16));
    int slots = ScratchSlots::count(c.max_threads(), ceil_div(std::max<int64_t>(rows, 1), kRowsPerTask));
    c.request_scratch(static_cast<size_t>(checked_mul(elements, slots)) * sizeof(T));
    return {rows, elements, slots};
  }

  /// Calls fn(row, similarities, scratch) for every row. The similarities are the kernel function of the row and each support vector.
  template <typename Fn>
  void run(RunContext& c, const SvmModel<T>& model, Fn fn) const {
    const int64_t columns = model.vectors.columns, stride = model.vectors.stride;
    ScratchSlots pieces(c.scratch<T>(), static_cast<size_t>(scratch_elements) * sizeof(T), slots);
    parallel_for(c.pool(), ceil_div(rows, kRowsPerTask), 1, [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(pieces);
      T* similarity = reinterpret_cast<T*>(lease.data());
      T* converted_rows = similarity + kRowsPerTask * stride;
      T* scratch = converted_rows + kRowsPerTask * columns;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task * kRowsPerTask, count = std::min(kRowsPerTask, rows - first);
        const X* x = c.in<X>(0) + first * columns;
        if constexpr (std::is_same_v<X, T>) {
          kernels::svm_similarities(model.kernel, model.vectors, x, count, similarity);
        } else {
          std::copy_n(x, count * columns, converted_rows);
          kernels::svm_similarities(model.kernel, model.vectors, static_cast<const T*>(converted_rows), count, similarity);
        }
        for (int64_t r = 0; r < count; ++r) fn(first + r, static_cast<const T*>(similarity + r * stride), scratch);
      }
    });
  }
};

template <typename X>
struct SvmClassifier {
  using T = MlComputeType<X>;
  Rows<X> rows;
  int64_t out_columns;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    auto model = std::make_unique<SvmModel<T>>(a);
    model->kernel = read_kernel(a);
    model->labels = ClassLabels::of(a, "classlabels_ints");
    model->num_classes = std::max<int64_t>(model->labels.count(), 1);
    int64_t count = 0;
    for (int64_t size : a.get_ints("vectors_per_class")) {
      if (size < 0) throw Error(ErrorCode::invalid_model, fmt::format("vectors_per_class holds {}", size));
      model->class_start.push_back(count);
      model->class_size.push_back(size);
      count = checked_add(count, size);
    }
    model->set_vectors(a, count, model->num_classes - 1);
    if (!model->has_vectors()) return model;
    if (static_cast<int64_t>(model->class_size.size()) != model->num_classes || model->num_classes < 2)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("vectors_per_class has {} elements for {} classes", model->class_size.size(), model->num_classes));
    model->check(model->rho, model->num_pairs(), "rho");
    if (model->has_probabilities()) {
      model->check(model->prob_a, model->num_pairs(), "prob_a");
      model->check(model->prob_b, model->num_pairs(), "prob_b");
    }
    return model;
  }

  static SvmClassifier bind(BindContext& c) {
    const auto& model = c.packed<SvmModel<T>>();
    int64_t k = model.num_classes;
    int64_t per_row = model.num_pairs() + 2 * k + kernels::pairwise_coupling_scratch(k);
    return {Rows<X>::bind(c, per_row), model.num_scores()};
  }

  void run(RunContext& c) const {
    const auto& model = c.packed<SvmModel<T>>();
    rows.run(c, model, [&](int64_t row, const T* similarity, T* scratch) {
      T* scores = scratch;
      int64_t label = model.has_vectors() ? one_against_one(model, similarity, scratch, &scores) : linear(model, similarity, scores);
      model.labels.write(c, 0, row, label);
      if (auto* out = c.out<float>(1))
        for (int64_t k = 0; k < out_columns; ++k) out[row * out_columns + k] = static_cast<float>(scores[k]);
    });
  }

  static int64_t linear(const SvmModel<T>& model, const T* products, T* scores) {
    for (int64_t k = 0; k < model.num_classes; ++k) scores[k] = model.rho[0] + products[k];
    int64_t label = std::max_element(scores, scores + model.num_classes) - scores;
    kernels::post_transform(model.transform, scores, model.num_classes);
    return label;
  }

  // Classifies one row: each pair of classes votes for one of the two. The scores are the margins of the pairs, or probabilities that are
  // derived from all margins.
  static int64_t one_against_one(const SvmModel<T>& model, const T* similarity, T* scratch, T** scores) {
    int64_t k = model.num_classes, pairs = model.num_pairs();
    T* margins = scratch;
    T* votes = margins + pairs;
    T* final_scores = votes + k;
    std::fill_n(votes, k, T{0});
    auto dot = [&](int64_t coefficient_row, int64_t of_class) {
      const int64_t start = model.class_start[static_cast<size_t>(of_class)];
      return kernels::dot(model.coefficients.data() + coefficient_row * model.num_vectors + start, similarity + start,
                          model.class_size[static_cast<size_t>(of_class)]);
    };
    int64_t pair = 0;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = i + 1; j < k; ++j, ++pair) {
        margins[pair] = static_cast<T>(static_cast<double>(model.rho[static_cast<size_t>(pair)]) + dot(j - 1, i) + dot(i, j));
        votes[margins[pair] > 0 ? i : j] += 1;
      }
    }
    int64_t label = std::max_element(votes, votes + k) - votes;
    *scores = final_scores;
    if (model.has_probabilities()) {
      kernels::pairwise_coupling(margins, model.prob_a.data(), model.prob_b.data(), k, final_scores, final_scores + k);
      kernels::post_transform(model.transform, final_scores, k);
    } else if (k == 2) {
      kernels::write_pair(model.transform, PairFrom::negation, margins[0], final_scores);
      if (model.transform == PostTransform::softmax || model.transform == PostTransform::softmax_zero)
        kernels::post_transform(model.transform, final_scores, 2);
    } else {
      *scores = margins;
      kernels::post_transform(model.transform, margins, pairs);
    }
    return label;
  }
};

template <typename X>
struct SvmRegressor {
  using T = MlComputeType<X>;
  Rows<X> rows;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    auto model = std::make_unique<SvmModel<T>>(a);
    model->kernel = read_kernel(a);
    model->one_class = a.get_int("one_class", 0) != 0;
    model->set_vectors(a, a.get_int("n_supports", 0), 1);
    if (model->kernel.type == SvmKernel::Type::linear && model->has_vectors()) model->join_linear_vectors();
    return model;
  }
  static SvmRegressor bind(BindContext& c) { return {Rows<X>::bind(c, 0)}; }

  void run(RunContext& c) const {
    const auto& model = c.packed<SvmModel<T>>();
    rows.run(c, model, [&](int64_t row, const T* similarity, T*) {
      T sum = model.rho[0];
      if (model.has_vectors())
        sum = static_cast<T>(static_cast<double>(sum) + kernels::dot(model.coefficients.data(), similarity, model.num_vectors));
      else
        sum += similarity[0];
      if (model.one_class) sum = sum > 0 ? T{1} : T{-1};
      kernels::post_transform(model.transform, &sum, 1);
      c.out<float>(0)[row] = static_cast<float>(sum);
    });
  }
};

void infer_classifier(InferContext& c) {
  ClassLabels labels = ClassLabels::of(c.attributes(), "classlabels_ints");
  int64_t k = std::max<int64_t>(labels.count(), 1), vectors = 0;
  for (int64_t size : c.get_ints("vectors_per_class")) vectors = checked_add(vectors, size);
  bool probabilities = c.attributes().has("prob_a") && !c.attributes().get_floats("prob_a").empty();
  set_row_output(c, 0, labels.dtype());
  set_row_output(c, 1, DType::float32, Dim(vectors <= 0 || probabilities || k == 2 ? k : checked_mul(k, k - 1) / 2));
}

void infer_regressor(InferContext& c) { set_row_output(c, 0, DType::float32, Dim(1)); }

Cost cost(const ShapeContext& c) {
  auto elements = static_cast<double>(c.node().attributes.get_floats("support_vectors").size());
  auto rows = static_cast<double>(c.shape(0).rank() == 2 ? c.shape(0)[0] : 1);
  return {.flops = 3 * rows * elements, .bytes = c.size_bytes(0) + 4 * elements};
}

}  // namespace

std::vector<OpDef> ml_svm_ops() {
  return {
      {.name = "SVMClassifier",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", kLabels}, {"Z", {DType::float32}}},
       .attributes = {{"classlabels_ints"},
                      {"classlabels_strings"},
                      {"coefficients"},
                      {"kernel_params"},
                      {"kernel_type", std::string_view("LINEAR")},
                      {"post_transform", std::string_view("NONE")},
                      {"prob_a"},
                      {"prob_b"},
                      {"rho"},
                      {"support_vectors"},
                      {"vectors_per_class"}},
       .infer = infer_classifier,
       .cost = cost,
       .kernels = typed<SvmClassifier, float, double, int32_t, int64_t>()},
      {.name = "SVMRegressor",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"coefficients"},
                      {"kernel_params"},
                      {"kernel_type", std::string_view("LINEAR")},
                      {"n_supports", int64_t{0}},
                      {"one_class", int64_t{0}},
                      {"post_transform", std::string_view("NONE")},
                      {"rho"},
                      {"support_vectors"}},
       .infer = infer_regressor,
       .cost = cost,
       .kernels = typed<SvmRegressor, float, double, int32_t, int64_t>()},
  };
}

}  // namespace treadle::ops
