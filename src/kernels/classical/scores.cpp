#include "kernels/classical/scores.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <type_traits>

#include "kernels/elementwise/unary_f32.h"
#include "kernels/normalization/softmax.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

/// Winitzki's approximation of the inverse error function, as in ONNX's reference implementation. Infinite or NaN outside (-1, 1).
double inverse_erf(double x) {
  constexpr double a = 0.147;
  double log = std::log((1 - x) * (1 + x));
  double v = 2 / (std::numbers::pi * a) + 0.5 * log;
  return std::copysign(std::sqrt(std::sqrt(v * v - log / a) - v), x);
}

double probit(double p) { return std::numbers::sqrt2 * inverse_erf(2 * p - 1); }

template <typename T>
void softmax(T* scores, int64_t count) {
  T largest = *std::max_element(scores, scores + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += scores[i] = static_cast<T>(std::exp(static_cast<double>(scores[i] - largest)));
  for (int64_t i = 0; i < count; ++i) scores[i] = static_cast<T>(static_cast<double>(scores[i]) / sum);
}

// Computes a softmax in which a score of zero, which means "no vote", stays zero.
template <typename T>
void softmax_zero(T* scores, int64_t count) {
  constexpr T zero = static_cast<T>(1e-7);
  T largest = *std::max_element(scores, scores + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    bool voted = scores[i] > zero || scores[i] < -zero;
    double value = voted ? std::exp(static_cast<double>(scores[i] - largest))
                         : static_cast<double>(scores[i]) * std::exp(-static_cast<double>(largest));
    sum += value;
    scores[i] = static_cast<T>(value);
  }
  for (int64_t i = 0; i < count; ++i) scores[i] = sum == 0 ? static_cast<T>(0.5) : static_cast<T>(static_cast<double>(scores[i]) / sum);
}

}  // namespace

double logistic(double x) {
  double v = 1 / (1 + std::exp(-std::abs(x)));
  return x < 0 ? 1 - v : v;
}

PostTransform parse_post_transform(std::string_view name) {
  if (name == "NONE" || name.empty()) return PostTransform::none;
  if (name == "SOFTMAX") return PostTransform::softmax;
  if (name == "LOGISTIC") return PostTransform::logistic;
  if (name == "SOFTMAX_ZERO") return PostTransform::softmax_zero;
  if (name == "PROBIT") return PostTransform::probit;
  throw Error(ErrorCode::invalid_model,
              "post_transform = \"" + std::string(name) + "\"; expected NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT");
}

template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t count) {
  if (transform == PostTransform::probit) {
    for (int64_t i = 0; i < count; ++i) scores[i] = static_cast<T>(probit(static_cast<double>(scores[i])));
  }
  if (transform == PostTransform::softmax) softmax(scores, count);
  if (transform == PostTransform::softmax_zero) softmax_zero(scores, count);
  if (transform == PostTransform::logistic) {
    for (int64_t i = 0; i < count; ++i) scores[i] = static_cast<T>(logistic(static_cast<double>(scores[i])));
  }
}

template <typename T>
void post_transform(PostTransform transform, T* scores, int64_t rows, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    if (transform == PostTransform::softmax) return kernels::softmax<float>(rows, count, 1, scores, scores, nullptr);
    if (transform == PostTransform::logistic) return unary_f32(Unary::sigmoid, 0, 0, scores, scores, rows * count);
  }
  if (transform != PostTransform::none)
    for (int64_t row = 0; row < rows; ++row) post_transform(transform, scores + row * count, count);
}

template <typename T>
void write_pair(PostTransform transform, PairFrom from, T score, T* pair) {
  if (transform == PostTransform::logistic) from = PairFrom::negation;
  if (transform == PostTransform::probit) from = PairFrom::complement;
  pair[0] = from == PairFrom::complement ? 1 - score : -score;
  pair[1] = score;
  if (transform == PostTransform::logistic || transform == PostTransform::probit) post_transform(transform, pair, 2);
}

template void post_transform<float>(PostTransform, float*, int64_t);
template void post_transform<double>(PostTransform, double*, int64_t);
template void post_transform<float>(PostTransform, float*, int64_t, int64_t);
template void post_transform<double>(PostTransform, double*, int64_t, int64_t);
template void write_pair<float>(PostTransform, PairFrom, float, float*);
template void write_pair<double>(PostTransform, PairFrom, double, double*);

}  // namespace treadle::kernels
