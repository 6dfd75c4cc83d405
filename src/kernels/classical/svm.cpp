#include "kernels/classical/svm.h"

#include <algorithm>
#include <cmath>

#include "kernels/classical/scores.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kLanes = 16;  // independent partial sums, which the compiler turns into vectors

template <typename T, typename Term>
T sum_of(int64_t n, Term term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace

template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  return sum_of<T>(n, [&](int64_t i) { return a[i] * b[i]; });
}

template <typename T>
T svm_kernel(const SvmKernel& kernel, const T* a, const T* b, int64_t n) {
  auto gamma = static_cast<T>(kernel.gamma), coef0 = static_cast<T>(kernel.coef0);
  switch (kernel.type) {
    case SvmKernel::Type::linear: return dot(a, b, n);
    case SvmKernel::Type::poly: return std::pow(gamma * dot(a, b, n) + coef0, static_cast<T>(kernel.degree));
    case SvmKernel::Type::sigmoid: return std::tanh(gamma * dot(a, b, n) + coef0);
    case SvmKernel::Type::rbf: break;
  }
  T distance = sum_of<T>(n, [&](int64_t i) { return (a[i] - b[i]) * (a[i] - b[i]); });
  return std::exp(-gamma * distance);
}

template <typename T>
void pairwise_coupling(const T* margins, const T* a, const T* b, int64_t num_classes, T* probabilities, T* scratch) {
  const int64_t k = num_classes;
  T* r = scratch;     // r[i][j]: probability of i against j
  T* q = r + k * k;   // the quadratic form whose minimum on the simplex is sought
  T* qp = q + k * k;  // q p
  constexpr T tiny = static_cast<T>(1e-7);
  for (int64_t i = 0, pair = 0; i < k; ++i) {
    for (int64_t j = i + 1; j < k; ++j, ++pair) {
      auto wins = static_cast<T>(1 - logistic(static_cast<double>(margins[pair] * a[pair] + b[pair])));
      r[i * k + j] = std::clamp(wins, tiny, 1 - tiny);
      r[j * k + i] = 1 - r[i * k + j];
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    probabilities[i] = 1 / static_cast<T>(k);
    q[i * k + i] = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (j == i) continue;
      q[i * k + i] += r[j * k + i] * r[j * k + i];
      q[i * k + j] = -r[j * k + i] * r[i * k + j];
    }
  }
  const T tolerance = static_cast<T>(0.005) / static_cast<T>(k);
  for (int64_t iteration = 0; iteration < std::max<int64_t>(100, k); ++iteration) {
    T pqp = 0;
    for (int64_t i = 0; i < k; ++i) {
      qp[i] = 0;
      for (int64_t j = 0; j < k; ++j) qp[i] += q[i * k + j] * probabilities[j];
      pqp += probabilities[i] * qp[i];
    }
    T worst = 0;
    for (int64_t i = 0; i < k; ++i) worst = std::max(worst, std::abs(qp[i] - pqp));
    if (worst < tolerance) break;
    // Coordinate descent; the sum is brought back to one after each step.
    for (int64_t i = 0; i < k; ++i) {
      T step = (pqp - qp[i]) / q[i * k + i], shrink = 1 / (1 + step);
      pqp = (pqp + step * (step * q[i * k + i] + 2 * qp[i])) * shrink * shrink;
      probabilities[i] += step;
      for (int64_t j = 0; j < k; ++j) {
        qp[j] = (qp[j] + step * q[i * k + j]) * shrink;
        probabilities[j] *= shrink;
      }
    }
  }
}

#define TREADLE_SVM(T)                                                     \
  template T dot<T>(const T*, const T*, int64_t);                          \
  template T svm_kernel<T>(const SvmKernel&, const T*, const T*, int64_t); \
  template void pairwise_coupling<T>(const T*, const T*, const T*, int64_t, T*, T*);
TREADLE_SVM(float)
TREADLE_SVM(double)
#undef TREADLE_SVM

}  // namespace treadle::kernels
