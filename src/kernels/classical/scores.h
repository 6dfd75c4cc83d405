// What classical models do with raw scores: the post transforms of the ai.onnx.ml operators, and the two-class special cases.
#pragma once

#include <cstdint>
#include <string_view>

namespace treadle::kernels {

/// The numbers are those of TreeEnsemble's attribute.
enum class PostTransform : uint8_t { none = 0, softmax = 1, logistic = 2, softmax_zero = 3, probit = 4 };

/// @throws Error(invalid_model) for anything but NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO and PROBIT.
PostTransform parse_post_transform(std::string_view name);

/// Applies the transform to `count` scores of one row, in place. A lone score is transformed like any row: SOFTMAX makes it 1.
/// @pre count > 0
template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t count);

/// The same for each row of scores[rows, count].
template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t rows, int64_t count);

/// Two scores of a two-class model from the one score of its second class.
enum class PairFrom : uint8_t {
  complement,  ///< (1 - s, s): s is a probability
  negation,    ///< (-s, s): s is a margin
};

/// Writes the pair, transformed: LOGISTIC gives (sigmoid(-s), sigmoid(s)) and PROBIT (probit(1 - s), probit(s)); the other transforms
/// leave the pair as it is, as the reference does.
template <typename T>
void write_pair(PostTransform transform, PairFrom from, T score, T* pair);

extern template void post_transform<float>(PostTransform, float*, int64_t);
extern template void post_transform<double>(PostTransform, double*, int64_t);
extern template void post_transform<float>(PostTransform, float*, int64_t, int64_t);
extern template void post_transform<double>(PostTransform, double*, int64_t, int64_t);
extern template void write_pair<float>(PostTransform, PairFrom, float, float*);
extern template void write_pair<double>(PostTransform, PairFrom, double, double*);

/// 1 / (1 + exp(-x)), without overflow.
double logistic(double x);

}  // namespace treadle::kernels
