// What the elementwise families share: broadcasting loops, inference, costs, and old opsets' broadcasting.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/float_types.h"
#include "core/thread_pool.h"
#include "graph/infer.h"
#include "graph/op_def.h"

// The kernels may write over one of their inputs, element by element; without this the compiler's overlap check sends that case to a scalar
// loop.
#if defined(__clang__)
#define TREADLE_ELEMENTWISE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TREADLE_ELEMENTWISE_LOOP _Pragma("GCC ivdep")
#endif

namespace treadle::ops {

/// Elements that one chunk of a parallel loop takes; a multiple of 8, so that chunks of packed elements never share a byte.
inline constexpr int64_t kElementwiseGrain = 16384;

/// How N operands run over a result of broadcasting: axes of extent 1 are dropped, and neighbouring axes that all operands walk evenly are
/// merged. Strides are in elements, 0 where an operand is stretched.
template <int N>
struct BroadcastLoop {
  int rank = 0;
  int64_t total = 0;
  std::array<int64_t, kMaxRank> extents{};
  std::array<std::array<int64_t, kMaxRank>, N> strides{};

  static BroadcastLoop make(const std::array<const Shape*, N>& shapes, const Shape& result) {
    BroadcastLoop loop;
    loop.total = result.num_elements();
    // From the innermost axis outwards; reversed at the end.
    std::array<int64_t, N> step;
    step.fill(1);
    for (int axis = result.rank() - 1; axis >= 0; --axis) {
      int64_t extent = result[axis];
      std::array<int64_t, N> stride;
      for (size_t k = 0; k < N; ++k) {
        int own = axis - (result.rank() - shapes[k]->rank());
        int64_t own_extent = own < 0 ? 1 : (*shapes[k])[own];
        stride[k] = own_extent == 1 ? 0 : step[k];
        step[k] *= own_extent;
      }
      if (extent == 1) continue;
      auto last = static_cast<size_t>(loop.rank - 1);
      bool merges = loop.rank > 0;
      for (size_t k = 0; merges && k < N; ++k) merges = stride[k] == loop.strides[k][last] * loop.extents[last];
      if (merges) {
        loop.extents[last] *= extent;
        continue;
      }
      auto next = static_cast<size_t>(loop.rank++);
      loop.extents[next] = extent;
      for (size_t k = 0; k < N; ++k) loop.strides[k][next] = stride[k];
    }
    if (loop.rank == 0) {
      loop.rank = 1;
      loop.extents[0] = loop.total;
    }
    auto reverse = [&](std::array<int64_t, kMaxRank>& values) {
      for (int i = 0, j = loop.rank - 1; i < j; ++i, --j) std::swap(values[static_cast<size_t>(i)], values[static_cast<size_t>(j)]);
    };
    reverse(loop.extents);
    for (auto& stride : loop.strides) reverse(stride);
    return loop;
  }

  int64_t inner_stride(int operand) const { return strides[static_cast<size_t>(operand)][static_cast<size_t>(rank - 1)]; }

  /// Calls fn(offsets, out_offset, n) on runs of the innermost axis that cover the result.
  template <typename Fn>
  void run(ThreadPool* pool, Fn&& fn) const {
    parallel_for(pool, total, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, kMaxRank> index{};
      std::array<int64_t, N> offset{};
      int64_t rest = begin;
      for (int axis = rank - 1; axis >= 0; --axis) {
        auto a = static_cast<size_t>(axis);
        index[a] = rest % extents[a];
        rest /= extents[a];
        for (size_t k = 0; k < N; ++k) offset[k] += index[a] * strides[k][a];
      }
      auto inner = static_cast<size_t>(rank - 1);
      for (int64_t at = begin; at < end;) {
        int64_t n = std::min(extents[inner] - index[inner], end - at);
        fn(static_cast<const std::array<int64_t, N>&>(offset), at, n);
        at += n;
        if (at >= end) break;
        // The run reached the end of its row: back to its start, and on to the next one.
        for (size_t k = 0; k < N; ++k) offset[k] -= index[inner] * strides[k][inner];
        index[inner] = 0;
        for (int axis = rank - 2; axis >= 0; --axis) {
          auto a = static_cast<size_t>(axis);
          for (size_t k = 0; k < N; ++k) offset[k] += strides[k][a];
          if (++index[a] < extents[a]) break;
          for (size_t k = 0; k < N; ++k) offset[k] -= index[a] * strides[k][a];
          index[a] = 0;
        }
      }
    });
  }
};

inline BroadcastLoop<2> broadcast_loop_2(const ShapeContext& c) {
  return BroadcastLoop<2>::make({&c.shape(0), &c.shape(1)}, c.output_shape(0));
}

/// A functor that reads attributes has `static F bind(BindContext&)`.
template <typename F>
F bind_functor(BindContext& c) {
  if constexpr (requires { F::bind(c); }) {
    return F::bind(c);
  } else {
    return F{};
  }
}

/// Types that models compute in; the others get a smaller loop.
template <typename T>
inline constexpr bool is_common_type =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>;

/// out[i] = f(in[i]), computed in float for the narrow floats.
template <typename F, typename T, typename R = T>
struct UnaryKernel {
  int64_t n;
  F f;

  static UnaryKernel bind(BindContext& c) { return {c.num_elements(0), bind_functor<F>(c)}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    R* out = c.out<R>(0);
    parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      TREADLE_ELEMENTWISE_LOOP
      for (int64_t i = begin; i < end; ++i) out[i] = static_cast<R>(f(static_cast<compute_type_t<T>>(in[i])));
    });
  }
};

template <typename F, typename... Ts>
std::vector<KernelDef> unary_kernels() {
  return {kernel<UnaryKernel<F, Ts>>("plain", dtype_of<Ts>)...};
}

/// out[i] = f(a[i], b[i]) under broadcasting, computed in float for the narrow floats.
template <typename F, typename T, typename R = T>
struct BinaryKernel {
  BroadcastLoop<2> loop;
  F f;

  static BinaryKernel bind(BindContext& c) { return {broadcast_loop_2(c), bind_functor<F>(c)}; }
  void run(RunContext& c) const {
    using C = compute_type_t<T>;
    const T* in_a = c.in<T>(0);
    const T* in_b = c.in<T>(1);
    R* result = c.out<R>(0);
    int64_t step_a = loop.inner_stride(0), step_b = loop.inner_stride(1);
    auto apply = [&](const T& x, const T& y) { return static_cast<R>(f(static_cast<C>(x), static_cast<C>(y))); };
    loop.run(c.pool(), [&](const std::array<int64_t, 2>& offset, int64_t at, int64_t n) {
      const T* a = in_a + offset[0];
      const T* b = in_b + offset[1];
      R* out = result + at;
      if constexpr (is_common_type<T>) {
        if (step_a == 1 && step_b == 1) {
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], b[i]);
          return;
        }
        if (step_a == 1 && step_b == 0) {
          T y = *b;
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], y);
          return;
        }
        if (step_a == 0 && step_b == 1) {
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

template <typename F, typename... Ts>
std::vector<KernelDef> binary_kernels() {
  return {kernel<BinaryKernel<F, Ts>>("plain", dtype_of<Ts>)...};
}
template <typename F, typename... Ts>
std::vector<KernelDef> comparison_kernels() {
  return {kernel<BinaryKernel<F, Ts, bool>>("plain", dtype_of<Ts>)...};
}

// Inference.

/// Output 0 has the type of input 0.
void infer_same_as_input(InferContext& c);
/// Output 0 has input 0's dtype and the shape that all inputs broadcast to.
void infer_broadcast(InferContext& c);
/// As infer_broadcast, with booleans.
void infer_broadcast_bool(InferContext& c);
/// The shape that all inputs broadcast to; nothing if a rank is unknown.
std::optional<SymbolicShape> broadcast_inputs(const InferContext& c, int first = 0);
/// Sets what is known of output 0 of a broadcasting operator from what is known of inputs 0 and 1; `fn` says nothing where it cannot tell.
void propagate_binary(InferContext& c, const SymbolicShape& result, std::optional<Dim> (*fn)(const Dim& a, const Dim& b));
/// Elements of a known value, repeated under broadcasting to `result`, whose extents are integers.
KnownValues broadcast_known(const KnownValues& values, const SymbolicShape& shape, const SymbolicShape& result);
/// True if all extents are integers and there are at most kMaxKnownValues elements.
bool is_small_static(const SymbolicShape& shape);
/// Integer division that rounds towards zero, as ONNX's Div does; nothing where the sign decides and is not known.
std::optional<Dim> truncating_div(const Dim& a, const Dim& b);

// Costs, with `kFlops` operations per element of the output.

template <int kFlops>
Cost elementwise_cost(const ShapeContext& c) {
  double n = static_cast<double>(c.output_shape(0).num_elements());
  double bytes = n * static_cast<double>(bits_of(c.output_dtype(0))) / 8;
  for (int i = 0; i < c.num_inputs(); ++i)
    if (c.has_input(i)) bytes += c.size_bytes(i);
  return {kFlops * n, bytes};
}

// Old opsets.

/// Opset 1 marked inputs that an operator may overwrite; it says nothing about the result.
void drop_consumed_inputs(Graph& graph, NodeId id);
/// Opsets before 7: B is stretched only if `broadcast` says so, and its axes stand from `axis` of A on.
void upgrade_broadcast_axis(Graph& graph, NodeId id);

}  // namespace treadle::ops
