// Implements pooling over windows (MaxPool, AveragePool, LpPool) and over all spatial axes (GlobalMaxPool ...), and MaxUnpool.
#include "kernels/conv/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/reduce/reduce.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/window.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

int64_t bind_norm_order(const BindContext& c) {
  const int64_t p = c.get_int("p", 2);
  if (p < 1) throw Error(ErrorCode::invalid_argument, fmt::format("p is {}, not a positive integer", p));
  return p;
}

namespace {

using kernels::Window;

constexpr TypeSet kMaxPoolTypes = kFloats | TypeSet{DType::int8, DType::uint8};

SymbolicShape kernel_shape_of(const InferContext& c) {
  const std::vector<int64_t>& kernel = c.get_ints("kernel_shape");
  return {kernel.begin(), kernel.end()};
}

void check_rank(const InferContext& c) {
  if (c.rank(0) < 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X is of rank {}; it has a batch, channels, and at least one spatial axis", c.rank(0)));
}

void infer_pool(InferContext& c) {
  if (!c.has_rank(0)) {
    c.set_output_dtype(0, c.dtype(0));
    if (c.has_output(1)) c.set_output_dtype(1, DType::int64);
    return;
  }
  check_rank(c);
  const SymbolicShape& x = c.shape(0);
  SymbolicShape out = infer_window(c.attributes(), spatial(x), kernel_shape_of(c));
  out.insert(out.begin(), {x[0], x[1]});
  if (c.has_output(1)) c.set_output(1, DType::int64, out);
  c.set_output(0, c.dtype(0), std::move(out));
}

Cost pool_cost(const ShapeContext& c) {
  double taps = 1;
  for (int64_t extent : c.get_ints("kernel_shape")) taps *= static_cast<double>(extent);
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {outputs * taps, c.size_bytes(0) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

/// The parameters of a pool over windows, derived from the shapes.
template <typename T>
struct WindowPool {
  Window window;
  int64_t planes;
  Wide x, y;

  static WindowPool make(BindContext& c) {
    WindowPool p{bind_pool(c), c.shape(0)[0] * c.shape(0)[1], {}, {}};
    ScratchLayout layout;
    p.x = reserve_wide<T>(layout, c.num_elements(0));
    p.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return p;
  }
};

template <typename T>
struct MaxPool {
  WindowPool<T> p;
  bool column_major, has_indices;

  static MaxPool bind(BindContext& c) { return {WindowPool<T>::make(c), c.get_int("storage_order") != 0, c.has_output(1)}; }
  void run(RunContext& c) const {
    const auto* in = widen(c, c.in<T>(0), p.x);
    auto* out = wide_output(c, c.out<T>(0), p.y);
    kernels::max_pool(p.window, p.planes, in, out, has_indices ? c.out<int64_t>(1) : nullptr, column_major, c.pool());
    narrow(c, p.y, c.out<T>(0));
  }
};

template <typename T>
struct AveragePool {
  WindowPool<T> p;
  bool count_include_pad;

  static AveragePool bind(BindContext& c) { return {WindowPool<T>::make(c), c.get_int("count_include_pad") != 0}; }
  void run(RunContext& c) const {
    const auto* in = widen(c, c.in<T>(0), p.x);
    kernels::average_pool(p.window, p.planes, in, wide_output(c, c.out<T>(0), p.y), count_include_pad, c.pool());
    narrow(c, p.y, c.out<T>(0));
  }
};

template <typename T>
struct LpPool {
  WindowPool<T> p;
  int64_t order;

  static LpPool bind(BindContext& c) { return {WindowPool<T>::make(c), bind_norm_order(c)}; }
  void run(RunContext& c) const {
    const auto* in = widen(c, c.in<T>(0), p.x);
    kernels::lp_pool(p.window, p.planes, in, wide_output(c, c.out<T>(0), p.y), order, c.pool());
    narrow(c, p.y, c.out<T>(0));
  }
};

void infer_global(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  if (c.rank(0) < 2) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}; it has a batch and channels", c.rank(0)));
  SymbolicShape out = c.shape(0);
  std::fill(out.begin() + 2, out.end(), Dim(1));
  c.set_output(0, c.dtype(0), std::move(out));
}

template <typename T, kernels::Reduce kOp>
struct GlobalPool {
  kernels::ReducePlan plan;

  static GlobalPool bind(BindContext& c) {
    const int64_t planes = c.shape(0)[0] * c.shape(0)[1];
    const int64_t dims[2] = {planes, c.shape(0).product(2, c.shape(0).rank())};
    return {kernels::plan_reduce(dims, 0b10)};
  }
  void run(RunContext& c) const { kernels::reduce(kOp, plan, c.in<T>(0), c.out<T>(0), c.pool()); }
};
template <typename T>
using GlobalAveragePool = GlobalPool<T, kernels::Reduce::mean>;
template <typename T>
using GlobalMaxPool = GlobalPool<T, kernels::Reduce::max>;

template <typename T>
struct GlobalLpPool {
  int64_t planes, length, order;

  static GlobalLpPool bind(BindContext& c) {
    return {c.shape(0)[0] * c.shape(0)[1], c.shape(0).product(2, c.shape(0).rank()), bind_norm_order(c)};
  }
  void run(RunContext& c) const {
    const T* x = c.in<T>(0);
    T* y = c.out<T>(0);
    parallel_for(c.pool(), planes, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, length)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0;
        for (int64_t k = i * length; k < (i + 1) * length; ++k) {
          const double v = std::abs(static_cast<double>(x[k]));
          sum += order == 1 ? v : order == 2 ? v * v : std::pow(v, static_cast<double>(order));
        }
        y[i] = static_cast<T>(order == 1 ? sum : order == 2 ? std::sqrt(sum) : std::pow(sum, 1 / static_cast<double>(order)));
      }
    });
  }
};

// MaxUnpool.

// Returns the input extent from which a pool with these attributes gives the extent `pooled`.
Dim unpooled_extent(const Attributes& attributes, const Dim& pooled, size_t axis, size_t rank) {
  const auto strides = spatial_ints(attributes, "strides", rank, 1), kernel = spatial_ints(attributes, "kernel_shape", rank, 1);
  const std::vector<int64_t>& pads = attributes.get_ints("pads");
  if (!pads.empty() && pads.size() != 2 * rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("pads has {} elements for {} spatial axes", pads.size(), rank));
  const int64_t padding = pads.empty() ? 0 : pads[axis] + pads[rank + axis];
  return (pooled - 1) * strides[axis] + kernel[axis] - padding;
}

void infer_max_unpool(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  check_rank(c);
  const SymbolicShape& x = c.shape(0);
  if (c.has_rank(1) && c.rank(1) != c.rank(0))
    throw Error(ErrorCode::invalid_argument, fmt::format("I is of rank {}, X of rank {}", c.rank(1), c.rank(0)));
  if (c.has_input(2)) {
    auto shape = c.known(2);
    if (!shape) return c.set_output(0, c.dtype(0), c.data_dependent_shape("unpool", c.rank(0)));
    if (shape->size() != x.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("output_shape has {} elements, X is of rank {}", shape->size(), x.size()));
    return c.set_output(0, c.dtype(0), SymbolicShape(shape->begin(), shape->end()));
  }
  SymbolicShape out{x[0], x[1]};
  for (size_t i = 2; i < x.size(); ++i) out.push_back(unpooled_extent(c.attributes(), x[i], i - 2, x.size() - 2));
  c.set_output(0, c.dtype(0), std::move(out));
}

// Writes each element of X to the position in the output that its index gives. If output_shape is given, the indices refer to an output of
// that shape.
struct MaxUnpool {
  DType dtype;
  int64_t count, total;

  static MaxUnpool bind(BindContext& c) {
    const Shape& x = c.shape(0);
    if (!(c.shape(1) == x)) throw Error(ErrorCode::invalid_argument, fmt::format("I is {}, X is {}", to_string(c.shape(1)), to_string(x)));
    return {c.dtype(0), x.num_elements(), c.output_shape(0).num_elements()};
  }
  void run(RunContext& c) const {
    const int64_t* indices = c.in<int64_t>(1);
    kernels::visit_element(bits_of(dtype) / 8, [&]<typename T>() {
      const T* x = c.in<T>(0);
      T* y = c.out<T>(0);
      std::fill_n(y, total, T{});
      for (int64_t i = 0; i < count; ++i) {
        if (indices[i] < 0 || indices[i] >= total)
          throw Error(ErrorCode::invalid_argument, fmt::format("I contains {}; the output has {} places", indices[i], total));
        y[indices[i]] = x[i];
      }
    });
  }
};

// Before opset 2, p was a float. This upgrade makes it an integer.
void order_to_int(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  if (!attributes.has("p")) return;
  const float p = attributes.get_float("p");
  if (p != std::floor(p)) throw Error(ErrorCode::not_implemented, fmt::format("p is {}; there is an implementation for integers", p));
  attributes.set("p", static_cast<int64_t>(p));
}

OpDef float_pool(std::string_view name, std::vector<int> since, void (*infer)(InferContext&), Cost (*cost)(const ShapeContext&),
                 std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = std::move(since),
          .inputs = {{"X", kFloats, "T"}},
          .outputs = {{"Y", kFloats, "T"}},
          .infer = infer,
          .cost = cost,
          .kernels = std::move(kernels),
          .half = HalfFloats::float32_by_itself};
}

Gradients max_pool_gradient(GradientContext& g) {
  ValueId indices = kNoValue;
  if (g.attributes().get_int("storage_order", 0) != 0 && g.output(1) != kNoValue) {
    // With storage_order 1, the indices of the node are column-major. The gradient needs row-major ones, so another MaxPool computes them.
    Attributes by_rows = g.attributes();
    by_rows.erase("storage_order");
    indices = g.op_n("MaxPool", {g.input(0)}, 2, std::move(by_rows))[1];
  } else {
    g.graph().node(g.node().id).attributes.erase("storage_order");
    indices = require_output(g, 1);
  }
  return {g.op("MaxPoolGrad", {g.grad_output(0), indices, g.shape_of(g.input(0))}, {}, "treadle")};
}

Gradients average_pool_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("AveragePoolGrad", {g.grad_output(0), g.shape_of(g.input(0))}, attributes, "treadle")};
}

/// Returns sign(x) |x|^(p - 1), the derivative of |x|^p / p.
ValueId power_slope(GradientContext& g, ValueId x, int64_t p) {
  if (p == 2) return x;
  const ValueId sign = g.op("Sign", {x});
  return p == 1 ? sign : g.mul(sign, g.op("Pow", {g.op("Abs", {x}), g.scalar(static_cast<double>(p - 1), x)}));
}

/// Returns dy y^(1 - p), but 0 where y is 0.
ValueId divided_by_power(GradientContext& g, ValueId dy, ValueId y, int64_t p) {
  if (p == 1) return dy;
  const ValueId none = g.op("Equal", {y, g.scalar(0, y)});
  const ValueId safe = g.op("Where", {none, g.scalar(1, y), y});
  const ValueId power = p == 2 ? safe : g.op("Pow", {safe, g.scalar(static_cast<double>(p - 1), y)});
  return g.op("Where", {none, g.scalar(0, y), g.div(dy, power)});
}

// Differentiates y = (sum |x|^p)^(1/p): dx is sign(x) |x|^(p - 1), times the sum of dy y^(1 - p) over all windows that contain x.
Gradients lp_pool_gradient(GradientContext& g) {
  const int64_t p = g.attributes().get_int("p", 2);
  const ValueId factor = divided_by_power(g, g.grad_output(0), g.output(0), p);
  Attributes attributes = g.attributes();
  attributes.erase("p");
  attributes.set("sums", int64_t{1});
  const ValueId spread = g.op("AveragePoolGrad", {factor, g.shape_of(g.input(0))}, attributes, "treadle");
  return {g.mul(power_slope(g, g.input(0), p), spread)};
}

Gradients global_lp_pool_gradient(GradientContext& g) {
  const int64_t p = g.attributes().get_int("p", 2);
  return {g.mul(power_slope(g, g.input(0), p), divided_by_power(g, g.grad_output(0), g.output(0), p))};
}

// If several elements equal the maximum, they share its gradient evenly.
Gradients global_max_pool_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  const ValueId taken = g.op("Cast", {g.op("Equal", {x, g.output(0)})}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
  std::vector<int64_t> axes;
  for (int axis = 2; axis < rank_of(g, x); ++axis) axes.push_back(axis);
  return {g.mul(taken, g.div(g.grad_output(0), g.reduce_sum(taken, std::move(axes), /*keepdims=*/true)))};
}

Gradients global_average_pool_gradient(GradientContext& g) {
  const ValueId count = elements_per_element(g, g.input(0), g.output(0));
  return {expand_like(g, g.div(g.grad_output(0), count), g.input(0))};
}

// The gradient of an element of X is the element of dY at the position that the index gives.
Gradients max_unpool_gradient(GradientContext& g) {
  return {g.op("Gather", {g.op("Reshape", {g.grad_output(0), g.ints({-1})}), g.input(1)})};
}

}  // namespace

std::vector<OpDef> pool_ops() {
  OpDef max_pool = float_pool("MaxPool", {1, 8, 10, 11, 12, 22}, infer_pool, pool_cost,
                              typed<MaxPool, float, double, Float16, BFloat16, int8_t, uint8_t>());
  max_pool.inputs = {{"X", kMaxPoolTypes, "T"}};
  max_pool.outputs = {{"Y", kMaxPoolTypes, "T"}, {"Indices", kInt64, "I", Presence::optional}};
  max_pool.quantization = Quantization::chooses;
  max_pool.channels_last = {ChannelsLast::How::window, "NhwcMaxPool", "NhwcByteMaxPool"};
  max_pool.attributes = pool_attributes({{"storage_order", int64_t{0}}});
  OpDef average_pool =
      float_pool("AveragePool", {1, 7, 10, 11, 19, 22}, infer_pool, pool_cost, typed<AveragePool, float, double, Float16, BFloat16>());
  average_pool.channels_last = {ChannelsLast::How::window, "NhwcAveragePool"};
  average_pool.attributes = pool_attributes({{"count_include_pad", int64_t{0}}});
  OpDef lp_pool = float_pool("LpPool", {1, 2, 11, 18, 22}, infer_pool, pool_cost, typed<LpPool, float, double, Float16, BFloat16>());
  lp_pool.upgrade = {{1, order_to_int}};
  lp_pool.attributes = pool_attributes({{"p", int64_t{2}}});
  for (OpDef* pool : {&max_pool, &average_pool, &lp_pool}) pool->decompose = crop_negative_pads;
  OpDef global_average = float_pool("GlobalAveragePool", {1, 22}, infer_global, elementwise_cost<1>,
                                    typed<GlobalAveragePool, float, double, Float16, BFloat16>());
  OpDef global_max =
      float_pool("GlobalMaxPool", {1, 22}, infer_global, elementwise_cost<1>, typed<GlobalMaxPool, float, double, Float16, BFloat16>());
  global_average.channels_last = {ChannelsLast::How::spatial_reduction, "NhwcGlobalAveragePool"};
  global_max.channels_last = {ChannelsLast::How::spatial_reduction, "ReduceMax"};
  OpDef global_lp =
      float_pool("GlobalLpPool", {1, 2, 22}, infer_global, elementwise_cost<1>, typed<GlobalLpPool, float, double, Float16, BFloat16>());
  global_lp.upgrade = {{1, order_to_int}};
  global_lp.attributes = {{"p", int64_t{2}}};
  OpDef unpool{.name = "MaxUnpool",
               .since = {9, 11, 22},
               .inputs = {{"X", kFloats, "T1"}, {"I", kInt64, "T2"}, {"output_shape", kInt64, "T2", Presence::optional}},
               .outputs = {{"output", kFloats, "T1"}},
               .attributes = {{"kernel_shape", AttributeDef::Required{}}, {"pads"}, {"strides"}},
               .infer = infer_max_unpool,
               .cost = move_cost,
               .kernels = {kernel<MaxUnpool>()},
               .value_inputs = {2}};
  return with_gradients({max_pool, average_pool, lp_pool, global_average, global_max, global_lp, unpool},
                        {{"MaxPool", max_pool_gradient},
                         {"AveragePool", average_pool_gradient},
                         {"LpPool", lp_pool_gradient},
                         {"GlobalAveragePool", global_average_pool_gradient},
                         {"GlobalMaxPool", global_max_pool_gradient},
                         {"GlobalLpPool", global_lp_pool_gradient},
                         {"MaxUnpool", max_unpool_gradient}});
}

}  // namespace treadle::ops
