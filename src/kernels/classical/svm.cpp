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

// Columns whose terms one chain of sums adds up: the rounding of longer ones would be most of the error of a long row.
constexpr int64_t kLongestSum = 256;

// sums[r, v] of kRows rows and two registers of support vectors: products, or squares of differences.
template <int kRows, bool kDistance, typename T>
HWY_INLINE void tile(const T* x, int64_t columns, const T* vectors, int64_t stride, T* sums) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<hn::ScalableTag<T>>;
  for (int64_t begin = 0; begin < columns; begin += kLongestSum) {
    const int64_t end = std::min(columns, begin + kLongestSum);
    V low[kRows], high[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(d);
    for (int64_t c = begin; c < end; ++c) {
      const V first = hn::LoadU(d, vectors + c * stride), second = hn::LoadU(d, vectors + c * stride + lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const V own = hn::Set(d, x[r * columns + c]);
        if constexpr (kDistance) {
          const V a = hn::Sub(own, first), b = hn::Sub(own, second);
          low[r] = hn::MulAdd(a, a, low[r]), high[r] = hn::MulAdd(b, b, high[r]);
        } else {
          low[r] = hn::MulAdd(own, first, low[r]), high[r] = hn::MulAdd(own, second, high[r]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      T* to = sums + r * stride;
      if (begin > 0) low[r] = hn::Add(low[r], hn::LoadU(d, to)), high[r] = hn::Add(high[r], hn::LoadU(d, to + lanes));
      hn::StoreU(low[r], d, to), hn::StoreU(high[r], d, to + lanes);
    }
  }
}

template <bool kDistance, typename T>
void all_tiles(const SvmVectors<T>& vectors, const T* x, int64_t rows, T* sums) {
  const auto step = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    for (int64_t v = 0; v < vectors.stride; v += step)
      tile<4, kDistance>(x + r * vectors.columns, vectors.columns, vectors.packed.data() + v, vectors.stride,
                         sums + r * vectors.stride + v);
  for (; r < rows; ++r)
    for (int64_t v = 0; v < vectors.stride; v += step)
      tile<1, kDistance>(x + r * vectors.columns, vectors.columns, vectors.packed.data() + v, vectors.stride,
                         sums + r * vectors.stride + v);
}

template <typename T>
void sums_of(const SvmVectors<T>& vectors, bool distance, const T* x, int64_t rows, T* sums) {
  if (distance)
    all_tiles<true>(vectors, x, rows, sums);
  else
    all_tiles<false>(vectors, x, rows, sums);
}

// Two chains of sums in double.
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

// values[i] = (gamma values[i] + coef0)^degree, as far as whole vectors go; returns how far.
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

void svm_sums_f32(const SvmVectors<float>& vectors, bool distance, const float* x, int64_t rows, float* sums) {
  sums_of(vectors, distance, x, rows, sums);
}
void svm_sums_f64(const SvmVectors<double>& vectors, bool distance, const double* x, int64_t rows, double* sums) {
  sums_of(vectors, distance, x, rows, sums);
}
double svm_dot_f32(const float* a, const float* b, int64_t n) { return sum_of_products(a, b, n); }
double svm_dot_f64(const double* a, const double* b, int64_t n) { return sum_of_products(a, b, n); }
int64_t svm_powers_f32(float gamma, float coef0, int degree, float* values, int64_t n) { return powers(gamma, coef0, degree, values, n); }
int64_t svm_powers_f64(double gamma, double coef0, int degree, double* values, int64_t n) {
  return powers(gamma, coef0, degree, values, n);
}
int64_t svm_step_f32() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }
int64_t svm_step_f64() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<double>())); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(svm_sums_f32);
HWY_EXPORT(svm_sums_f64);
HWY_EXPORT(svm_dot_f32);
HWY_EXPORT(svm_dot_f64);
HWY_EXPORT(svm_powers_f32);
HWY_EXPORT(svm_powers_f64);
HWY_EXPORT(svm_step_f32);
HWY_EXPORT(svm_step_f64);

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
SvmVectors<T>::SvmVectors(const T* rows, int64_t count, int64_t columns) : count(count), columns(columns) {
  const int64_t step = sizeof(T) == 4 ? HWY_DYNAMIC_DISPATCH(svm_step_f32)() : HWY_DYNAMIC_DISPATCH(svm_step_f64)();
  stride = (count + step - 1) / step * step;
  packed.resize(static_cast<size_t>(columns * stride));
  for (int64_t v = 0; v < count; ++v)
    for (int64_t c = 0; c < columns; ++c) packed[static_cast<size_t>(c * stride + v)] = rows[v * columns + c];
}

template <typename T>
void svm_similarities(const SvmKernel& kernel, const SvmVectors<T>& vectors, const T* x, int64_t rows, T* similarity) {
  const bool distance = kernel.type == SvmKernel::Type::rbf;
  if constexpr (std::is_same_v<T, float>)
    HWY_DYNAMIC_DISPATCH(svm_sums_f32)(vectors, distance, x, rows, similarity);
  else
    HWY_DYNAMIC_DISPATCH(svm_sums_f64)(vectors, distance, x, rows, similarity);
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

#define TREADLE_SVM(T)                                                                              \
  template struct SvmVectors<T>;                                                                    \
  template void svm_similarities<T>(const SvmKernel&, const SvmVectors<T>&, const T*, int64_t, T*); \
  template double dot<T>(const T*, const T*, int64_t);                                              \
  template void pairwise_coupling<T>(const T*, const T*, const T*, int64_t, T*, T*);
TREADLE_SVM(float)
TREADLE_SVM(double)
#undef TREADLE_SVM

}  // namespace treadle::kernels
#endif
