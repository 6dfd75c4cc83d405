// The transforms that ai.onnx.ml operators finally apply to raw scores, and the special cases for two classes.
#pragma once

#include <cstdint>
#include <string_view>

namespace treadle::kernels {

/// The transforms, numbered as in TreeEnsemble's attribute post_transform.
enum class PostTransform : uint8_t { none = 0, softmax = 1, logistic = 2, softmax_zero = 3, probit = 4 };

/// Parses the name of a transform. @throws Error(invalid_model) unless it is NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT
PostTransform parse_post_transform(std::string_view name);

/// Applies the transform in place to the `count` scores of one row. A row may have a single score, which SOFTMAX turns into 1.
/// @pre count > 0
template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t count);

/// Applies the transform to each row of scores[rows, count].
template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t rows, int64_t count);

/// Says how the scores of two classes follow from the score s of the second class.
enum class PairFrom : uint8_t {
  complement,  ///< (1 - s, s): s is a probability
  negation,    ///< (-s, s): s is a margin
};

/// Writes the transformed pair. LOGISTIC gives (sigmoid(-s), sigmoid(s)) and PROBIT (probit(1 - s), probit(s)). Other transforms do not
/// change the pair, as in ONNX's reference.
template <typename T>
void write_pair(PostTransform transform, PairFrom from, T score, T* pair);

extern template void post_transform<float>(PostTransform, float*, int64_t);
extern template void post_transform<double>(PostTransform, double*, int64_t);
extern template void post_transform<float>(PostTransform, float*, int64_t, int64_t);
extern template void post_transform<double>(PostTransform, double*, int64_t, int64_t);
extern template void write_pair<float>(PostTransform, PairFrom, float, float*);
extern template void write_pair<double>(PostTransform, PairFrom, double, double*);

/// Returns 1 / (1 + exp(-x)), without overflow.
double logistic(double x);

}  // namespace treadle::kernels
