// Elementwise functions of one float32 array, also used as activations of GEMMs, convolutions and recurrent cells.
#pragma once

#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

/// The functions. Their parameters `a` and `b` are ONNX's alpha and beta, or bounds.
enum class Unary : uint8_t {
  none,              // f(x) = x
  relu,              // max(x, 0)
  clip,              // min(max(x, a), b)
  leaky_relu,        // x < 0 ? a x : x
  thresholded_relu,  // x > a ? x : 0
  sigmoid,           // error 2 ulp
  hard_sigmoid,      // min(max(a x + b, 0), 1)
  tanh,              // relative error 2.5e-7
  scaled_tanh,       // a tanh(b x)
  elu,               // x < 0 ? a (exp(x) - 1) : x
  selu,              // b * (x < 0 ? a (exp(x) - 1) : x)
  celu,              // max(x, 0) + min(0, a (exp(x / a) - 1))
  softplus,          // log(1 + exp(x))
  softsign,          // x / (1 + |x|)
  affine,            // a x + b
  gelu,              // 0.5 x (1 + erf(x / sqrt(2))), computed with erf
  gelu_tanh,         // the approximation of gelu by tanh
  gelu_slope,        // derivative of gelu; absolute error 3e-7
  silu,              // x sigmoid(a x); a is 1 for SiLU
  hard_swish,        // x min(max(x / 6 + 1/2, 0), 1)
  mish,              // x tanh(softplus(x))
  exp,               // error 1 ulp
  log,               // error 1 ulp
  erf,               // relative error 3e-7
  sqrt,
  reciprocal,
  rsqrt,  // 1 / sqrt(x), computed by division
  abs,
  neg,
  square,
  scaled_hard_swish,  // a hard_swish(x) + b
  sin,                // error 2 ulp
  cos,                // error 2 ulp
  tan,                // error 3 ulp
  asin,               // error 2 ulp
  acos,               // error 2 ulp
  atan,               // error 2 ulp
  sinh,               // error 2 ulp
  cosh,               // error 2 ulp
  asinh,              // relative error 2.5e-7
  acosh,              // relative error 2.5e-7
  atanh,              // relative error 2.5e-7
};

/// Computes dst[i] = f(src[i]) for i in [0, n), on the calling thread. dst may be src. NaN stays NaN. No alignment is needed.
void unary_f32(Unary op, float a, float b, const float* src, float* dst, int64_t n);

/// Returns the loop behind unary_f32(), for callers with many short arrays. The loop must later be called with the same `a`.
using UnaryLoop = void (*)(const float* src, float* dst, int64_t n, float a, float b);
UnaryLoop unary_loop_of(Unary op, float a);

/// Like unary_f32() above, on all threads of a pool.
void unary_f32(Unary op, float a, float b, const float* src, float* dst, int64_t n, ThreadPool* pool);

inline void log_f32(const float* src, float* dst, int64_t n) { unary_f32(Unary::log, 0, 0, src, dst, n); }
inline void tanh_f32(const float* src, float* dst, int64_t n) { unary_f32(Unary::tanh, 0, 0, src, dst, n); }

}  // namespace treadle::kernels
