// Support vector machines: kernel functions of rows and support vectors, and probabilities from margins of pairs. T is float or double.
#pragma once

#include <cstdint>

#include "kernels/classical/pairs.h"

namespace treadle::kernels {

struct SvmKernel {
  enum class Type : uint8_t { linear, poly, rbf, sigmoid };
  Type type = Type::linear;
  float gamma = 0, coef0 = 0, degree = 0;
};

/// Computes similarity[rows, vectors.stride] between x[rows, columns] and the support vectors.
/// linear: a.b; poly: (gamma a.b + coef0)^degree; sigmoid: tanh(gamma a.b + coef0); rbf: exp(-gamma |a - b|^2).
template <typename T>
void svm_similarities(const SvmKernel& kernel, const SideBySide<T>& vectors, const T* x, int64_t rows, T* similarity);

/// Returns the sum of a[i] * b[i]. It is computed in double, as the terms of a nu-SVM nearly cancel.
template <typename T>
double dot(const T* a, const T* b, int64_t n);

/// Returns the number of scratch elements of pairwise_coupling().
inline int64_t pairwise_coupling_scratch(int64_t num_classes) { return 2 * num_classes * num_classes + num_classes; }

/// Computes class probabilities from the margins of all pairs (i, j), i < j, in lexicographic order.
/// A pair's probability is 1 / (1 + exp(a * margin + b)) (Platt). Pairs are coupled by the second method of Wu, Lin and Weng, "Probability
/// Estimates for Multi-class Classification by Pairwise Coupling", JMLR 5 (2004), with libsvm's stopping threshold, 0.005 / classes.
template <typename T>
void pairwise_coupling(const T* margins, const T* a, const T* b, int64_t num_classes, T* probabilities, T* scratch);

#define TREADLE_SVM(T)                                                                                     \
  extern template void svm_similarities<T>(const SvmKernel&, const SideBySide<T>&, const T*, int64_t, T*); \
  extern template double dot<T>(const T*, const T*, int64_t);                                              \
  extern template void pairwise_coupling<T>(const T*, const T*, const T*, int64_t, T*, T*);
TREADLE_SVM(float)
TREADLE_SVM(double)
#undef TREADLE_SVM

}  // namespace treadle::kernels
