// Kernels for unary functions that src/kernels/elementwise has vectorized: float32 is computed directly, 16-bit floats in blocks of
// float32.
#pragma once

#include <algorithm>

#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/unary_f32.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {

/// The parameters a and b of the function that kernels::unary_f32 computes, such as the alpha of an Elu.
struct UnaryParameters {
  float a = 0, b = 0;
};
inline UnaryParameters no_parameters(const ShapeContext&) { return {}; }

template <typename T>
void vectorized_unary(kernels::Unary op, UnaryParameters p, const T* in, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    kernels::unary_f32(op, p.a, p.b, in, out, n);
  } else {
    constexpr int64_t kBlock = 512;
    float block[kBlock];
    for (int64_t first = 0; first < n; first += kBlock) {
      int64_t count = std::min(kBlock, n - first);
      kernels::widen(in + first, block, count);
      kernels::unary_f32(op, p.a, p.b, block, block, count);
      kernels::narrow(block, out + first, count);
    }
  }
}

template <typename T, kernels::Unary kOp, UnaryParameters (*kRead)(const ShapeContext&)>
struct VectorizedUnary {
  int64_t n;
  UnaryParameters parameters;

  static VectorizedUnary bind(BindContext& c) { return {c.num_elements(0), kRead(c)}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    parallel_for(c.pool(), n, kElementwiseGrain,
                 [&](int64_t begin, int64_t end) { vectorized_unary(kOp, parameters, in + begin, out + begin, end - begin); });
  }
};

/// Returns kernels for all float types: vectorized ones for float32 and 16-bit floats, and the functor F for float64.
template <kernels::Unary kOp, typename F, UnaryParameters (*kRead)(const ShapeContext&) = no_parameters>
std::vector<KernelDef> vectorized_kernels() {
  return built_kernel<VectorizedUnary<float, kOp, kRead>, float>("vectors") + built_kernel<UnaryKernel<F, double>, double>() +
         built_kernel<VectorizedUnary<Float16, kOp, kRead>, Float16>("vectors") +
         built_kernel<VectorizedUnary<BFloat16, kOp, kRead>, BFloat16>("vectors");
}

}  // namespace treadle::ops
