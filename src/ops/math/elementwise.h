// Helpers for the elementwise operators: broadcasting loops, inference, costs, and the broadcasting of old opsets.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <vector>

#include "core/values/float_types.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/binary_f32.h"
#include "kernels/elementwise/broadcast.h"
#include "kernels/elementwise/convert.h"
#include "treadle/error.h"

// Kernels may write the output over one of their inputs, element by element. The pragma tells the compiler that this is safe. Otherwise its
// overlap check at run time would choose a scalar loop.
#if defined(__clang__)
#define TREADLE_ELEMENTWISE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TREADLE_ELEMENTWISE_LOOP _Pragma("GCC ivdep")
#endif

namespace treadle::ops {

using kernels::kElementwiseGrain;  // a multiple of 8, so that chunks of packed elements never share a byte

template <size_t N>
kernels::BroadcastPlan<static_cast<int>(N)> plan_broadcast(const ShapeContext& c, const std::array<int, N>& inputs) {
  std::array<std::span<const int64_t>, N> shapes;
  for (size_t i = 0; i < N; ++i) shapes[i] = c.shape(inputs[i]).dims();
  return kernels::plan_broadcast<static_cast<int>(N)>(c.output_shape(0).dims(), shapes);
}
inline kernels::BroadcastPlan<2> plan_binary(const ShapeContext& c) { return plan_broadcast<2>(c, {0, 1}); }

/// Divides the result into runs of consecutive elements along the innermost axis, and calls fn(at, n, offsets) for them in parallel;
/// see kernels::for_each_run.
template <int N, typename Fn>
void parallel_runs(ThreadPool* pool, const kernels::BroadcastPlan<N>& plan, Fn&& fn) {
  parallel_for(pool, plan.size, kElementwiseGrain, [&](int64_t begin, int64_t end) { kernels::for_each_run(plan, begin, end, fn); });
}

/// Makes a functor. A functor that needs attributes of the node has a static function `bind(BindContext&)`, which is then called.
template <typename F>
F bind_functor(BindContext& c) {
  if constexpr (requires { F::bind(c); }) {
    return F::bind(c);
  } else {
    return F{};
  }
}

/// True for the types that models use most, which get fast loops. The loops for other types favor small code over speed.
template <typename T>
inline constexpr bool is_common_type =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>;

/// Returns condition ? a : b, computed with bit masks. Compilers turn ?: on computed floats into a branch, which prevents vectorization.
template <typename T>
inline T select(bool condition, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return condition ? a : b;
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    Bits mask = Bits{0} - static_cast<Bits>(condition);
    return std::bit_cast<T>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask));
  }
}

/// Computes out[i] = f(in[i]); 16-bit floats are computed in float. If the compiler does not vectorize the loop for a type, the functor may
/// provide its own loop, `rows(in, out, n)`.
template <typename F, typename T, typename R = T>
struct UnaryKernel {
  int64_t n;
  F f;

  static UnaryKernel bind(BindContext& c) { return {c.num_elements(0), bind_functor<F>(c)}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    R* out = c.out<R>(0);
    parallel_for(c.pool(), n, kElementwiseGrain, [in, out, f = f](int64_t begin, int64_t end) {
      // Copies the captured variables into locals. Otherwise the compiler must assume that stores of bytes to `out` change them.
      const T* from = in;
      R* to = out;
      const F function = f;
      if constexpr (requires { function.rows(from, to, end); }) return function.rows(from + begin, to + begin, end - begin);
      TREADLE_ELEMENTWISE_LOOP
      for (int64_t i = begin; i < end; ++i) to[i] = static_cast<R>(function(static_cast<compute_type_t<T>>(from[i])));
    });
  }
};

template <typename T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// Like UnaryKernel, for 16-bit floats. It converts blocks of elements to float32, so that the compiler vectorizes the loop over a block.
template <typename F, typename T>
struct HalfUnaryKernel {
  int64_t n;
  F f;

  static HalfUnaryKernel bind(BindContext& c) { return {c.num_elements(0), bind_functor<F>(c)}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 512;
      float block[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        int64_t count = std::min(kBlock, end - first);
        kernels::widen(in + first, block, count);
        for (int64_t i = 0; i < count; ++i) block[i] = f(block[i]);
        kernels::narrow(block, out + first, count);
      }
    });
  }
};

template <typename F, typename T>
KernelDef unary_kernel() {
  if constexpr (is_16_bit_float<T>)
    return kernel<HalfUnaryKernel<F, T>>("plain", dtype_of<T>);
  else
    return kernel<UnaryKernel<F, T>>("plain", dtype_of<T>);
}
template <typename F, typename... Ts>
std::vector<KernelDef> unary_kernels() {
  return kernels_of<Ts...>([]<typename T>() { return unary_kernel<F, T>(); });
}

/// Divides n elements into pieces and calls fn(same, i, count) for each piece [i, i + count). `same` points to `count` copies of `one`.
template <typename T, typename Fn>
void in_pieces(const T& one, int64_t n, Fn fn) {
  constexpr int64_t kPiece = 256;
  T same[kPiece];
  std::fill_n(same, std::min(n, kPiece), one);
  for (int64_t i = 0; i < n; i += kPiece) fn(same, i, std::min(kPiece, n - i));
}

/// Computes out[i] = f(a[i], b[i]) with broadcasting; 16-bit floats are computed in float. If the compiler does not vectorize the loop for
/// a type, the functor may provide its own loop, `rows(a, b, out, n)`.
template <typename F, typename T, typename R = T>
struct BinaryKernel {
  kernels::BroadcastPlan<2> plan;
  F f;

  static BinaryKernel bind(BindContext& c) { return {plan_binary(c), bind_functor<F>(c)}; }
  void run(RunContext& c) const {
    using C = compute_type_t<T>;
    const T* in_a = c.in<T>(0);
    const T* in_b = c.in<T>(1);
    R* result = c.out<R>(0);
    int64_t step_a = plan.inner_stride(0), step_b = plan.inner_stride(1);
    auto apply = [&](const T& x, const T& y) { return static_cast<R>(f(static_cast<C>(x), static_cast<C>(y))); };
    parallel_runs(c.pool(), plan, [&](int64_t at, int64_t n, const int64_t* offset) {
      const T* a = in_a + offset[0];
      const T* b = in_b + offset[1];
      R* out = result + at;
      if constexpr (is_common_type<T> || requires { f.rows(a, b, out, n); }) {
        if (step_a == 1 && step_b == 1) {
          if constexpr (requires { f.rows(a, b, out, n); }) return f.rows(a, b, out, n);
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], b[i]);
          return;
        }
        if (step_a == 1 && step_b == 0) {
          if constexpr (requires { f.rows(a, b, out, n); })
            return in_pieces(*b, n, [&](const T* same, int64_t i, int64_t count) { f.rows(a + i, same, out + i, count); });
          T y = *b;
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], y);
          return;
        }
        if (step_a == 0 && step_b == 1) {
          if constexpr (requires { f.rows(a, b, out, n); })
            return in_pieces(*a, n, [&](const T* same, int64_t i, int64_t count) { f.rows(same, b + i, out + i, count); });
          T x = *a;
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[i] = apply(x, b[i]);
          return;
        }
      }
      for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i * step_a], b[i * step_b]);
    });
  }
};

/// Like BinaryKernel, for 16-bit floats. It converts blocks of elements to float32, so that the compiler vectorizes the loop over a block.
template <typename F, typename T, typename R = T>
struct HalfBinaryKernel {
  kernels::BroadcastPlan<2> plan;
  F f;

  static constexpr int64_t kBlock = 256;

  static HalfBinaryKernel bind(BindContext& c) { return {plan_binary(c), bind_functor<F>(c)}; }
  static void load(const T* in, int64_t step, float* block, int64_t n) {
    if (step == 1) return kernels::widen(in, block, n);
    for (int64_t i = 0; i < n; ++i) block[i] = static_cast<float>(in[i * step]);
  }
  void run(RunContext& c) const {
    const T* in_a = c.in<T>(0);
    const T* in_b = c.in<T>(1);
    R* out = c.out<R>(0);
    int64_t step_a = plan.inner_stride(0), step_b = plan.inner_stride(1);
    parallel_runs(c.pool(), plan, [&](int64_t at, int64_t n, const int64_t* offset) {
      float a[kBlock], b[kBlock];
      for (int64_t first = 0; first < n; first += kBlock) {
        int64_t count = std::min(kBlock, n - first);
        load(in_a + offset[0] + first * step_a, step_a, a, count);
        load(in_b + offset[1] + first * step_b, step_b, b, count);
        if constexpr (std::is_same_v<R, T>) {
          for (int64_t i = 0; i < count; ++i) a[i] = f(a[i], b[i]);
          kernels::narrow(a, out + at + first, count);
        } else {
          for (int64_t i = 0; i < count; ++i) out[at + first + i] = f(a[i], b[i]);
        }
      }
    });
  }
};

template <typename F, typename T, typename R = T>
KernelDef binary_kernel() {
  if constexpr (is_16_bit_float<T>)
    return kernel<HalfBinaryKernel<F, T, R>>("plain", dtype_of<T>);
  else
    return kernel<BinaryKernel<F, T, R>>("plain", dtype_of<T>);
}
template <typename F, typename... Ts>
std::vector<KernelDef> binary_kernels() {
  return kernels_of<Ts...>([]<typename T>() { return binary_kernel<F, T>(); });
}
template <typename F, typename... Ts>
std::vector<KernelDef> comparison_kernels() {
  return kernels_of<Ts...>([]<typename T>() { return binary_kernel<F, T, bool>(); });
}

template <kernels::Binary kOp>
struct VectorizedBinary {
  kernels::BroadcastPlan<2> plan;

  static VectorizedBinary bind(BindContext& c) { return {plan_binary(c)}; }
  void run(RunContext& c) const { kernels::binary_f32(kOp, plan, c.in<float>(0), c.in<float>(1), c.out<float>(0), c.pool()); }
};
template <kernels::Binary kOp>
std::vector<KernelDef> vectorized_binary() {
  return {kernel<VectorizedBinary<kOp>>("vectors", DType::float32)};
}

// Helpers for inference.

/// Sets the type of output 0 to that of input 0.
void infer_same_as_input(InferContext& c);
/// Sets output 0: the dtype is that of input 0, the shape is what all inputs broadcast to.
void infer_broadcast(InferContext& c);
/// Returns the shape that all inputs broadcast to; nullopt if a rank is unknown.
std::optional<SymbolicShape> broadcast_inputs(const InferContext& c, int first = 0);
/// Returns fn(), or nullopt if its arithmetic on extents overflows. A kernel's integer arithmetic would wrap around instead.
template <typename F>
std::optional<Dim> or_unknown(F fn) {
  try {
    return fn();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::resource_exhausted) throw;
    return std::nullopt;
  }
}

/// Computes elements of output 0 that are known before the run, from known elements of inputs 0 and 1. `fn` returns nullopt for an element
/// that it cannot compute.
void propagate_binary(InferContext& c, const SymbolicShape& result, std::optional<Dim> (*fn)(const Dim& a, const Dim& b));
/// Broadcasts elements that are known before the run from `shape` to the shape `result`, whose extents are integers.
KnownValues broadcast_known(const KnownValues& values, const SymbolicShape& shape, const SymbolicShape& result);
/// Returns true if all extents are integers and their product, the number of elements, is at most kMaxKnownValues.
bool is_small_static(const SymbolicShape& shape);
/// Divides and rounds toward zero, as ONNX's Div does for integers. Returns nullopt if the result depends on an unknown sign.
std::optional<Dim> truncating_div(const Dim& a, const Dim& b);

// Returns the cost of an operator that needs `kFlops` operations per output element.

template <int kFlops>
Cost elementwise_cost(const ShapeContext& c) {
  double n = static_cast<double>(c.output_shape(0).num_elements());
  double bytes = n * static_cast<double>(bits_of(c.output_dtype(0))) / 8;
  for (int i = 0; i < c.num_inputs(); ++i)
    if (c.has_input(i)) bytes += c.size_bytes(i);
  return {kFlops * n, bytes};
}

// Functions that upgrade nodes of old opsets.

/// Removes the attribute `consumed_inputs` of opset 1, which marks inputs that the operator may overwrite. It does not affect the result.
void drop_consumed_inputs(Graph& graph, NodeId id);
/// Upgrades a node from before opset 7, where B is broadcast only if `broadcast` is set, with its axes aligned to A's axes from `axis` on.
void upgrade_broadcast_axis(Graph& graph, NodeId id);

}  // namespace treadle::ops
