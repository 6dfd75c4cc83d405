#include "kernels/classical/svm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/classical/svm.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/classical/scores.h"
#include "kernels/elementwise/unary_f32.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Returns a dot product, summed in double with two accumulators.
template <typename T>
double sum_of_products(const T* a, const T* b, int64_t n) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto wide = [&](const T* x) {
    if constexpr (std::is_same_v<T, double>)
      return hn::LoadU(d, x);
    else
      return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, hn::ScalableTag<double>>(), x));
  };
  auto even = hn::Zero(d), odd = even;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(wide(a + i), wide(b + i), even);
    odd = hn::MulAdd(wide(a + i + lanes), wide(b + i + lanes), odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Sets values[i] = (gamma values[i] + coef0)^degree for whole vectors. Returns the number of elements processed.
template <typename T>
int64_t powers(T gamma, T coef0, int degree, T* values, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto base = hn::MulAdd(hn::Set(d, gamma), hn::LoadU(d, values + i), hn::Set(d, coef0)), result = hn::Set(d, T{1});
    for (int left = degree; left > 0; left /= 2, base = hn::Mul(base, base))
      if (left % 2 == 1) result = hn::Mul(result, base);
    hn::StoreU(result, d, values + i);
  }
  return i;
}

}  // namespace

double svm_dot_f32(const float* a, const float* b, int64_t n) { return sum_of_products(a, b, n); }
double svm_dot_f64(const double* a, const double* b, int64_t n) { return sum_of_products(a, b, n); }
int64_t svm_powers_f32(float gamma, float coef0, int degree, float* values, int64_t n) { return powers(gamma, coef0, degree, values, n); }
int64_t svm_powers_f64(double gamma, double coef0, int degree, double* values, int64_t n) {
  return powers(gamma, coef0, degree, values, n);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(svm_dot_f32);
HWY_EXPORT(svm_dot_f64);
HWY_EXPORT(svm_powers_f32);
HWY_EXPORT(svm_powers_f64);

namespace {

template <typename T>
void polynomial(T gamma, T coef0, float degree, T* values, int64_t n) {
  constexpr float kLargest = 16;
  int64_t i = 0;
  if (degree >= 0 && degree <= kLargest && degree == std::floor(degree)) {
    if constexpr (std::is_same_v<T, float>)
      i = HWY_DYNAMIC_DISPATCH(svm_powers_f32)(gamma, coef0, static_cast<int>(degree), values, n);
    else
      i = HWY_DYNAMIC_DISPATCH(svm_powers_f64)(gamma, coef0, static_cast<int>(degree), values, n);
  }
  for (; i < n; ++i) values[i] = std::pow(gamma * values[i] + coef0, static_cast<T>(degree));
}

void map(Unary function, float a, float b, float* values, int64_t n) {
  unary_f32(Unary::affine, a, b, values, values, n);
  unary_f32(function, 0, 0, values, values, n);
}
void map(Unary function, double a, double b, double* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = function == Unary::exp ? std::exp(a * values[i] + b) : std::tanh(a * values[i] + b);
}

}  // namespace

template <typename T>
void svm_similarities(const SvmKernel& kernel, const SideBySide<T>& vectors, const T* x, int64_t rows, T* similarity) {
  if (kernel.type == SvmKernel::Type::rbf)
    squared_distances(vectors, x, rows, similarity);
  else
    products(vectors, x, rows, similarity);
  const auto gamma = static_cast<T>(kernel.gamma), coef0 = static_cast<T>(kernel.coef0);
  const int64_t n = rows * vectors.stride;
  switch (kernel.type) {
    case SvmKernel::Type::linear: return;
    case SvmKernel::Type::poly: return polynomial(gamma, coef0, kernel.degree, similarity, n);
    case SvmKernel::Type::sigmoid: return map(Unary::tanh, gamma, coef0, similarity, n);
    case SvmKernel::Type::rbf: return map(Unary::exp, -gamma, T{0}, similarity, n);
  }
}

template <typename T>
double dot(const T* a, const T* b, int64_t n) {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(svm_dot_f32)(a, b, n);
  else
    return HWY_DYNAMIC_DISPATCH(svm_dot_f64)(a, b, n);
}

template <typename T>
void pairwise_coupling(const T* margins, const T* a, const T* b, int64_t num_classes, T* probabilities, T* scratch) {
  const int64_t k = num_classes;
  T* r = scratch;     // r[i][j]: probability of class i against class j
  T* q = r + k * k;   // matrix of the quadratic form that is minimized over the simplex
  T* qp = q + k * k;  // the elements of the product q p
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
    // Minimizes by coordinate descent. After each step, the probabilities are normalized so that their sum is one.
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

#define TREADLE_SVM(T)                                                                              \
  template void svm_similarities<T>(const SvmKernel&, const SideBySide<T>&, const T*, int64_t, T*); \
  template double dot<T>(const T*, const T*, int64_t);                                              \
  template void pairwise_coupling<T>(const T*, const T*, const T*, int64_t, T*, T*);
TREADLE_SVM(float)
TREADLE_SVM(double)
#undef TREADLE_SVM

}  // namespace treadle::kernels
#endif
