// The state that SVMClassifier and SVMRegressor nodes make when the session is created.
#pragma once

#include <string_view>
#include <vector>

#include "core/base/checked.h"
#include "kernels/classical/scores.h"
#include "kernels/classical/svm.h"
#include "ops/ml/linear_model.h"

namespace treadle::ops {

template <typename T>
struct SvmModel final : PackedState {
  kernels::SvmKernel kernel;
  int64_t num_vectors = 0, num_classes = 1;
  kernels::SideBySide<T> vectors;  ///< support vectors; in a linear model, a row of weights per class
  std::vector<T> packed, coefficients, rho, prob_a, prob_b;
  std::vector<int64_t> class_start, class_size;
  kernels::PostTransform transform = kernels::PostTransform::none;
  ClassLabels labels;
  bool one_class = false;

  explicit SvmModel(const Attributes& a)
      : coefficients(converted(a.get_floats("coefficients"))),
        rho(converted(a.get_floats("rho"))),
        prob_a(converted(a.get_floats("prob_a"))),
        prob_b(converted(a.get_floats("prob_b"))),
        transform(kernels::parse_post_transform(a.get_string("post_transform", "NONE"))) {
    if (rho.empty()) throw Error(ErrorCode::invalid_model, "rho is empty");
  }

  int64_t num_pairs() const { return num_classes * (num_classes - 1) / 2; }
  bool has_vectors() const { return num_vectors > 0; }
  bool has_probabilities() const { return !prob_a.empty() && has_vectors(); }

  /// Returns the number of columns of a classifier's scores.
  int64_t num_scores() const { return !has_vectors() || has_probabilities() || num_classes == 2 ? num_classes : num_pairs(); }
  void check_columns(int64_t of_x) const {
    if (of_x != vectors.columns)
      throw Error(ErrorCode::invalid_argument, fmt::format("X has {} columns, the model has {}", of_x, vectors.columns));
  }

  void set_vectors(const Attributes& a, int64_t count, int64_t rows_of_coefficients) {
    num_vectors = count;
    if (count <= 0) {  // a linear model, without support vectors
      kernel.type = kernels::SvmKernel::Type::linear;
      return pack(coefficients, num_classes, split(coefficients, num_classes, "coefficients"));
    }
    const std::vector<T> rows = converted(a.get_floats("support_vectors"));
    pack(rows, count, split(rows, count, "support_vectors"));
    check(coefficients, checked_mul(count, rows_of_coefficients), "coefficients");
  }
  /// Replaces all support vectors by one. With a linear kernel, the weighted sum of the products with the vectors equals one product with
  /// the vectors' weighted sum.
  void join_linear_vectors() {
    std::vector<double> joined(static_cast<size_t>(vectors.columns));
    for (int64_t c = 0; c < vectors.columns; ++c)
      joined[static_cast<size_t>(c)] = kernels::dot(coefficients.data(), packed.data() + c * vectors.stride, vectors.count);
    coefficients.assign(joined.begin(), joined.end());
    pack(coefficients, 1, vectors.columns);
    num_vectors = 0;
  }
  void pack(const std::vector<T>& rows, int64_t count, int64_t columns) {
    vectors = {count, columns};
    packed.resize(static_cast<size_t>(checked_mul(columns, vectors.stride)));
    vectors.pack(rows.data(), packed.data());
  }
  size_t size_bytes() const override { return (packed.size() + coefficients.size()) * sizeof(T); }
  static std::vector<T> converted(const std::vector<float>& values) { return {values.begin(), values.end()}; }
  static int64_t split(const std::vector<T>& values, int64_t parts, std::string_view name) {
    if (values.empty() || static_cast<int64_t>(values.size()) % parts != 0)
      throw Error(ErrorCode::invalid_model, fmt::format("{} has {} elements, which cannot be split into {}", name, values.size(), parts));
    return static_cast<int64_t>(values.size()) / parts;
  }
  static void check(const std::vector<T>& values, int64_t expected, std::string_view name) {
    if (static_cast<int64_t>(values.size()) < expected)
      throw Error(ErrorCode::invalid_model, fmt::format("{} has {} elements, expected {}", name, values.size(), expected));
  }
};

}  // namespace treadle::ops
