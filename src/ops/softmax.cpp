// Softmax, LogSoftmax, Hardmax (ONNX, opset 13): along one axis, y = exp(x - max x) / sum exp(x - max x), its logarithm, and the first
// maximum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/unary_f32.h"
#include "ops/axis_rows.h"
#include "ops/elementwise.h"
#include "ops/list.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (c.has_rank(0)) c.axis("axis", -1, c.rank(0));
  c.set_output(0, c.input(0));
}

void exp_all(const float* in, float* out, int64_t n) { kernels::exp_f32(in, out, n); }
void exp_all(const double* in, double* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::exp(in[i]);
}

constexpr int64_t kLanes = 16;  // of the partial maxima and sums along a contiguous axis

template <typename T, typename C>
C maximum_of(const T* x, int64_t n) {
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<C>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = std::max(lanes[l], static_cast<C>(x[i + l]));
  for (int64_t l = 0; i < n; ++i, ++l) lanes[l] = std::max(lanes[l], static_cast<C>(x[i]));
  return *std::max_element(lanes, lanes + kLanes);
}

/// Writes or only sums exp(x - max) over a contiguous row, in blocks that stay in the first-level cache.
template <typename T, typename C, typename Store>
C sum_of_exponentials(const T* x, C max, int64_t n, Store&& store) {
  constexpr int64_t kBlock = 1024;
  C block[kBlock];
  C sum = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    int64_t count = std::min(kBlock, n - first);
    for (int64_t i = 0; i < count; ++i) block[i] = static_cast<C>(x[first + i]) - max;
    exp_all(block, block, count);
    C lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += block[i + l];
    for (int64_t l = 0; i < count; ++i, ++l) lanes[l] += block[i];
    for (C lane : lanes) sum += lane;
    store(first, block, count);
  }
  return sum;
}

template <typename T>
void softmax_row(const T* x, T* y, int64_t n) {
  using C = compute_type_t<T>;
  C max = maximum_of<T, C>(x, n);
  if constexpr (std::is_same_v<T, C>) {
    C sum = sum_of_exponentials(x, max, n, [&](int64_t first, const C* block, int64_t count) { std::copy_n(block, count, y + first); });
    C scale = C{1} / sum;
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
  } else {
    // The 16-bit floats would lose digits between the passes, so the exponentials are computed twice.
    C sum = sum_of_exponentials(x, max, n, [](int64_t, const C*, int64_t) {});
    C scale = C{1} / sum;
    sum_of_exponentials(x, max, n, [&](int64_t first, const C* block, int64_t count) {
      for (int64_t i = 0; i < count; ++i) y[first + i] = static_cast<T>(block[i] * scale);
    });
  }
}

template <typename T>
void log_softmax_row(const T* x, T* y, int64_t n) {
  using C = compute_type_t<T>;
  C max = maximum_of<T, C>(x, n);
  C shift = std::log(sum_of_exponentials(x, max, n, [](int64_t, const C*, int64_t) {}));
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>((static_cast<C>(x[i]) - max) - shift);
}

// A tile of columns: every column has its own maximum and sum.
template <bool kLog, typename T>
void softmax_tile(const T* x, T* y, int64_t length, int64_t step, int64_t columns) {
  using C = compute_type_t<T>;
  C max[AxisRows::kTile], sum[AxisRows::kTile], row[AxisRows::kTile];
  std::fill_n(max, columns, -std::numeric_limits<C>::infinity());
  std::fill_n(sum, columns, C{0});
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < columns; ++j) max[j] = std::max(max[j], static_cast<C>(x[i * step + j]));
  auto exponentials = [&](int64_t i) {
    for (int64_t j = 0; j < columns; ++j) row[j] = static_cast<C>(x[i * step + j]) - max[j];
    exp_all(row, row, columns);
  };
  for (int64_t i = 0; i < length; ++i) {
    exponentials(i);
    for (int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
  for (int64_t j = 0; j < columns; ++j) sum[j] = kLog ? std::log(sum[j]) : C{1} / sum[j];
  for (int64_t i = 0; i < length; ++i) {
    if (!kLog) exponentials(i);
    for (int64_t j = 0; j < columns; ++j)
      y[i * step + j] = static_cast<T>(kLog ? (static_cast<C>(x[i * step + j]) - max[j]) - sum[j] : row[j] * sum[j]);
  }
}

template <bool kLog, typename T>
struct SoftmaxKernel {
  AxisRows rows;

  static SoftmaxKernel bind(BindContext& c) { return {axis_rows(c)}; }
  static AxisRows axis_rows(const ShapeContext& c) {
    return c.shape(0).rank() == 0 ? AxisRows{} : AxisRows::of(c.shape(0), c.axis("axis", -1, c.shape(0).rank()));
  }

  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    rows.for_each_tile(c.pool(), [&](int64_t offset, int64_t columns) {
      if (rows.inner > 1)
        softmax_tile<kLog>(in + offset, out + offset, rows.length, rows.inner, columns);
      else if (kLog)
        log_softmax_row(in + offset, out + offset, rows.length);
      else
        softmax_row(in + offset, out + offset, rows.length);
    });
  }
};

template <typename T>
struct Softmax : SoftmaxKernel<false, T> {
  static Softmax bind(BindContext& c) { return {SoftmaxKernel<false, T>::bind(c)}; }
};
template <typename T>
struct LogSoftmax : SoftmaxKernel<true, T> {
  static LogSoftmax bind(BindContext& c) { return {SoftmaxKernel<true, T>::bind(c)}; }
};

template <typename T>
struct Hardmax {
  AxisRows rows;

  static Hardmax bind(BindContext& c) { return {SoftmaxKernel<false, T>::axis_rows(c)}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    rows.for_each_tile(c.pool(), [&](int64_t offset, int64_t columns) {
      for (int64_t j = 0; j < columns; ++j) {
        const T* x = in + offset + j;
        T* y = out + offset + j;
        int64_t best = 0;
        for (int64_t i = 1; i < rows.length; ++i)
          if (x[i * rows.inner] > x[best * rows.inner]) best = i;
        for (int64_t i = 0; i < rows.length; ++i) y[i * rows.inner] = static_cast<T>(i == best ? 1.0F : 0.0F);
      }
    });
  }
};

// Before opset 13 all axes from `axis` (1 if absent) on were one. Along the last axis that is the same thing; else the tensor is flattened.
void flatten_from_axis(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  int64_t axis = node.attributes.get_int("axis", 1);
  const Type& type = graph.type(node.inputs[0]);
  node.attributes.set("axis", int64_t{-1});
  if (type.has_rank()) {
    int rank = type.rank();
    if (rank == 0 || normalise_axis(axis, rank) == rank - 1) return;
  } else if (axis == -1) {
    return;
  }
  ValueId x = node.inputs[0], y = node.outputs[0];
  std::string op_type = node.op_type;
  NodeId shape = graph.add_node({.op_type = "Shape", .inputs = {x}}, id);
  NodeId flat = graph.add_node({.op_type = "Flatten", .inputs = {x}, .attributes = {{"axis", axis}}}, id);
  NodeId softmax = graph.add_node({.op_type = op_type, .inputs = {graph.node(flat).outputs[0]}, .attributes = {{"axis", int64_t{-1}}}}, id);
  NodeId back = graph.add_node({.op_type = "Reshape",
                                .inputs = {graph.node(softmax).outputs[0], graph.node(shape).outputs[0]},
                                .attributes = {{"allowzero", int64_t{1}}}},
                               id);
  graph.replace_uses(y, graph.node(back).outputs[0]);
  graph.remove_node(id);
}

template <int kFlops>
OpDef along_axis(std::string_view name, std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = {1, 11, 13},
          .upgrade = {{11, flatten_from_axis}},
          .inputs = {{"input", kFloats, "T"}},
          .outputs = {{"output", kFloats, "T"}},
          .attributes = {{"axis", int64_t{-1}}},
          .infer = infer,
          .cost = elementwise_cost<kFlops>,
          .kernels = std::move(kernels)};
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  OpDef softmax = along_axis<20>("Softmax", typed<Softmax, float, double, Float16, BFloat16>());
  OpDef log_softmax = along_axis<20>("LogSoftmax", typed<LogSoftmax, float, double, Float16, BFloat16>());
  // Every element is read before it is written, by one thread.
  softmax.alias = log_softmax.alias = {may_reuse(0, 0)};
  return {softmax, log_softmax, along_axis<1>("Hardmax", typed<Hardmax, float, double, Float16, BFloat16>())};
}

}  // namespace treadle::ops
