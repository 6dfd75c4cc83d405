// The states of LinearClassifier and LinearRegressor nodes, and the norms of Normalizer.
#pragma once

#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/classical/scores.h"
#include "kernels/gemm/gemm.h"
#include "ops/ml/common.h"

namespace treadle::ops {

/// The type in which an operator of ai.onnx.ml computes: float64 for float64 inputs, float32 for all others.
template <typename X>
using MlComputeType = std::conditional_t<std::is_same_v<X, double>, double, float>;

template <typename T>
struct LinearModel final : PackedState {
  kernels::OwnedPackedB<T> weights;
  std::vector<T> coefficients, intercepts;
  int64_t columns = 0, scores = 0;
  kernels::PostTransform transform = kernels::PostTransform::none;
  ClassLabels labels;

  LinearModel(const Attributes& attributes, int64_t num_scores) : scores(num_scores) {
    const auto& all = attributes.get_floats("coefficients");
    const auto& given = attributes.get_floats("intercepts");
    if (scores < 1 || all.empty() || all.size() % static_cast<size_t>(scores) != 0)
      throw Error(ErrorCode::invalid_model, fmt::format("{} coefficients cannot be split among {} scores", all.size(), scores));
    if (!given.empty() && static_cast<int64_t>(given.size()) != scores)
      throw Error(ErrorCode::invalid_model, fmt::format("{} intercepts for {} scores", given.size(), scores));
    columns = static_cast<int64_t>(all.size()) / scores;
    coefficients.assign(all.begin(), all.end());
    weights = kernels::pack_b<T>(coefficients.data(), columns, scores, columns, true);
    intercepts.assign(given.begin(), given.end());
    transform = kernels::parse_post_transform(attributes.get_string("post_transform", "NONE"));
  }
  void check_columns(int64_t of_x) const {
    if (of_x > columns)
      throw Error(ErrorCode::invalid_argument, fmt::format("X has {} columns, the model has {} coefficients a score", of_x, columns));
  }
  size_t size_bytes() const override { return coefficients.size() * sizeof(T) + (weights.storage ? weights.storage->size_bytes() : 0); }
};

enum class Norm : uint8_t { max, l1, l2 };

/// Returns the norm by which a Normalizer divides its rows. @throws Error(invalid_model) if the attribute names another norm
inline Norm norm_of(const Attributes& attributes) {
  const std::string_view name = attributes.get_string("norm", "MAX");
  if (name != "MAX" && name != "L1" && name != "L2")
    throw Error(ErrorCode::invalid_model, fmt::format("norm = \"{}\"; expected MAX, L1 or L2", name));
  return name == "MAX" ? Norm::max : name == "L1" ? Norm::l1 : Norm::l2;
}

}  // namespace treadle::ops
