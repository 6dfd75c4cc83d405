// Implements GridSample, which samples an image at the points of a grid, and AffineGrid, which computes such a grid.
#include "ops/tensor/grid_sample.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/grid_sample_function.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::GridMode;
using kernels::GridPadding;
using kernels::GridSampleParams;

constexpr TypeSet kSampledTypes = kNumeric | kBool;

void infer_grid_sample(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape &x = c.shape(0), &grid = c.shape(1);
  if (x.size() != grid.size() || x.size() < 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X is of rank {} and grid of rank {}; both have a batch and at least one spatial axis", x.size(), grid.size()));
  unify(x[0], grid[0], "batches of X and grid");
  unify(grid.back(), static_cast<int64_t>(x.size() - 2), "the last extent of grid and the spatial axes of X");
  SymbolicShape out{x[0], x[1]};
  out.insert(out.end(), grid.begin() + 1, grid.end() - 1);
  c.set_output(0, c.dtype(0), std::move(out));
}

}  // namespace

GridSampleParams bind_grid_sample(const BindContext& c) {
  const Shape &x = c.shape(0), &grid = c.shape(1);
  GridSampleParams p;
  p.rank = x.rank() - 2;
  if (p.rank > GridSampleParams::kMaxRank)
    throw Error(ErrorCode::not_implemented,
                fmt::format("{} spatial axes; there is an implementation for up to {}", p.rank, GridSampleParams::kMaxRank));
  check_equal(grid[0], x[0], "batches of X and grid");
  check_equal(grid.back(), p.rank, "the last extent of grid and the spatial axes of X");
  p.N = x[0], p.C = x[1];
  p.points = grid.product(1, grid.rank() - 1);
  for (int i = 0; i < p.rank; ++i) p.in[i] = x[2 + i];
  const std::string_view mode = c.get_string("mode", "linear"), padding = c.get_string("padding_mode", "zeros");
  if (mode == "nearest")
    p.mode = GridMode::nearest;
  else if (mode == "cubic")
    p.mode = GridMode::cubic;
  else if (mode != "linear")
    throw Error(ErrorCode::invalid_argument, fmt::format("mode is \"{}\", not linear, nearest or cubic", mode));
  if (padding == "border")
    p.padding = GridPadding::border;
  else if (padding == "reflection")
    p.padding = GridPadding::reflection;
  else if (padding != "zeros")
    throw Error(ErrorCode::invalid_argument, fmt::format("padding_mode is \"{}\", not zeros, border or reflection", padding));
  p.align_corners = c.get_int("align_corners") != 0;
  if (x.num_elements() == 0 && p.N * p.C * p.points > 0 && p.padding != GridPadding::zeros)
    throw Error(ErrorCode::invalid_argument, fmt::format("X is {}: it has nothing to sample", to_string(x)));
  return p;
}

namespace {

template <typename C>
void read_floats(const RunContext& c, int input, DType dtype, C* dst, int64_t n) {
  visit_dtype<FloatTypes>(dtype, [&]<typename T>() { convert_array(c.in<T>(input), dst, n, c.pool()); });
}

template <typename T>
struct GridSample {
  // Integers of 32 bits or more are computed in double, because float32 cannot represent all of them.
  using C = std::conditional_t<(sizeof(T) >= 4 && !std::is_same_v<T, float>), double, float>;
  GridSampleParams params;
  DType grid_dtype;
  int64_t x_count, grid_count, y_count;
  int64_t x, grid, y;  // offsets of widened operands in scratch

  static GridSample bind(BindContext& c) {
    GridSample k{bind_grid_sample(c), c.dtype(1), c.num_elements(0), c.num_elements(1), c.output_shape(0).num_elements(), 0, 0, 0};
    ScratchLayout layout;
    if constexpr (!std::is_same_v<T, C>) {
      k.x = layout.take(static_cast<size_t>(k.x_count) * sizeof(C));
      k.y = layout.take(static_cast<size_t>(k.y_count) * sizeof(C));
    }
    if (k.grid_dtype != dtype_of<C>) k.grid = layout.take(static_cast<size_t>(k.grid_count) * sizeof(C));
    c.request_scratch(layout.total());
    return k;
  }
  static T finish(C value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value >= C{0.5};
    } else if constexpr (std::is_integral_v<T>) {
      const C rounded = std::nearbyint(value);
      if (!(rounded >= static_cast<C>(std::numeric_limits<T>::lowest()))) return std::numeric_limits<T>::lowest();
      if (rounded >= static_cast<C>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
      return static_cast<T>(rounded);
    } else {
      return static_cast<T>(value);
    }
  }
  void run(RunContext& c) const {
    const C* places;
    if (grid_dtype == dtype_of<C>) {
      places = c.in<C>(1);
    } else {
      auto* room = reinterpret_cast<C*>(scratch_at(c, grid));
      read_floats(c, 1, grid_dtype, room, grid_count);
      places = room;
    }
    if constexpr (std::is_same_v<T, C>) {
      kernels::grid_sample(params, c.in<T>(0), places, c.out<T>(0), c.pool());
    } else {
      auto *in = reinterpret_cast<C*>(scratch_at(c, x)), *out = reinterpret_cast<C*>(scratch_at(c, y));
      convert_array(c.in<T>(0), in, x_count, c.pool());
      kernels::grid_sample(params, static_cast<const C*>(in), places, out, c.pool());
      for (int64_t i = 0; i < y_count; ++i) c.out<T>(0)[i] = finish(out[i]);
    }
  }
};

template <typename T>
struct GridSampleGrad {
  GridSampleParams params;

  static GridSampleGrad bind(BindContext& c) {
    GridSampleGrad k{bind_grid_sample(c)};
    check_equal(c.num_elements(2), k.params.N * k.params.C * k.params.points, "elements of the gradient, and samples");
    return k;
  }
  void run(RunContext& c) const {
    kernels::grid_sample_gradient(params, c.in<T>(0), c.in<T>(1), c.in<T>(2), c.out<T>(0), c.out<T>(1), c.pool());
  }
};

void infer_grid_sample_grad(InferContext& c) {
  c.set_output(0, c.input(0));
  if (c.has_output(1)) c.set_output(1, c.input(1));
}

// Before opset 20, the modes had the names of their two-dimensional forms. This upgrade renames them.
void rename_modes(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  const std::string_view mode = attributes.get_string("mode", "bilinear");
  if (mode == "bilinear")
    attributes.set("mode", std::string("linear"));
  else if (mode == "bicubic")
    attributes.set("mode", std::string("cubic"));
}

void infer_affine_grid(InferContext& c) {
  if (c.has_rank(1) && c.rank(1) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("size is of rank {}, not 1", c.rank(1)));
  const auto size = c.known(1);
  std::optional<int64_t> rank;
  if (size)
    rank = static_cast<int64_t>(size->size());
  else
    rank = known_length(c, 1);
  if (!rank) return c.set_output_dtype(0, c.dtype(0));
  if (*rank != 4 && *rank != 5) throw Error(ErrorCode::invalid_argument, fmt::format("size has {} elements, not 4 or 5", *rank));
  if (c.has_rank(0)) {
    if (c.rank(0) != 3) throw Error(ErrorCode::invalid_argument, fmt::format("theta is of rank {}, not 3", c.rank(0)));
    unify(c.shape(0)[1], *rank - 2, "rows of theta and spatial axes");
    unify(c.shape(0)[2], *rank - 1, "columns of theta and spatial axes, plus one");
  }
  SymbolicShape out;
  for (size_t i = 0; i < static_cast<size_t>(*rank); ++i)
    if (i != 1) out.push_back(size ? (*size)[i] : c.data_dependent_dim("grid"));
  out.push_back(*rank - 2);
  c.set_output(0, c.dtype(0), std::move(out));
}

}  // namespace

AffineGridPlan AffineGridPlan::bind(const BindContext& c) {
  const Shape& y = c.output_shape(0);
  AffineGridPlan k{.N = y[0], .rank = y.rank() - 2, .align_corners = c.get_int("align_corners") != 0};
  check_equal(c.shape(0)[0], k.N, "batches of theta and size");
  check_equal(c.num_elements(0), k.N * k.rank * (k.rank + 1), "elements of theta");
  for (int i = 0; i < k.rank; ++i) k.extents[3 - k.rank + i] = y[1 + i];
  return k;
}

namespace {

template <typename T>
struct AffineGrid : AffineGridPlan {
  Wide theta, grid;

  static AffineGrid bind(BindContext& c) {
    AffineGrid k{AffineGridPlan::bind(c), {}, {}};
    ScratchLayout layout;
    k.theta = reserve_wide<T>(layout, c.num_elements(0));
    k.grid = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto* maps = widen(c, c.in<T>(0), theta);
    kernels::affine_grid(N, rank, extents + 3 - rank, align_corners, maps, wide_output(c, c.out<T>(0), grid), c.pool());
    narrow(c, grid, c.out<T>(0));
  }
};

Cost sample_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {8 * outputs, c.size_bytes(0) + c.size_bytes(1) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

Gradients grid_sample_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  const DType dtype = g.type(x).dtype, grid_dtype = g.type(g.input(1)).dtype;
  auto as = [&](ValueId value, DType to) {
    return g.type(value).dtype == to ? value : g.op("Cast", {value}, {{"to", static_cast<int64_t>(to)}});
  };
  const Attributes attributes = g.attributes();
  Gradients result = g.op_n("GridSampleGrad", {x, as(g.input(1), dtype), g.grad_output(0)}, 2, attributes, "treadle");
  result[1] = as(result[1], grid_dtype);
  return result;
}

// Differentiates AffineGrid, which is linear in theta: the grid is theta times the points of the identity's grid, extended by ones.
Gradients affine_grid_gradient(GradientContext& g) {
  const ValueId theta = g.input(0), dy = g.grad_output(0);
  const int spatial = rank_of(g, dy) - 2;
  const int64_t dtype = static_cast<int64_t>(g.type(theta).dtype);
  const ValueId eye = g.op("EyeLike", {g.op("ConstantOfShape", {g.ints({spatial, spatial + 1})})}, {{"dtype", dtype}});
  const ValueId shape = g.shape_of(dy);
  const ValueId extents = g.op("Slice", {shape, g.ints({1}), g.ints({1 + spatial})});
  const ValueId size = g.op("Concat", {g.ints({1, 1}), extents}, {{"axis", int64_t{0}}});
  const Attributes attributes = g.attributes();
  const ValueId regular = g.op("AffineGrid", {g.op("Unsqueeze", {eye, g.ints({0})}), size}, attributes);
  const ValueId places = g.op("Reshape", {regular, g.ints({-1, spatial})});
  const ValueId columns = g.op("Pad", {places, g.ints({0, 0, 0, 1}), g.scalar(1, theta)});
  return {g.op("MatMul", {g.transpose(g.op("Reshape", {dy, g.ints({0, -1, spatial})}), {0, 2, 1}), columns})};
}

}  // namespace

std::vector<OpDef> grid_sample_ops() {
  constexpr TypeSet kGradientTypes{DType::float32, DType::float64};
  return {
      {.name = "GridSample",
       .since = {16, 20, 22},
       .upgrade = {{16, rename_modes}},
       .inputs = {{"X", kSampledTypes, "T1", Presence::required, of_ranks(3)}, {"grid", kFloats, "T2", Presence::required, of_ranks(3)}},
       .outputs = {{"Y", kSampledTypes, "T1"}},
       .attributes = {{"align_corners", int64_t{0}}, {"mode", std::string_view("linear")}, {"padding_mode", std::string_view("zeros")}},
       .infer = infer_grid_sample,
       .cost = sample_cost,
       .kernels = typed<GridSample, float, double, Float16, BFloat16, uint8_t, int8_t, uint16_t, int16_t, int32_t, uint32_t, int64_t,
                        uint64_t, bool>(),
       .gradient = grid_sample_gradient},
      {.name = "GridSampleGrad",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kGradientTypes, "T", Presence::required, of_ranks(3)},
                  {"grid", kGradientTypes, "T", Presence::required, of_ranks(3)},
                  {"dY", kGradientTypes, "T"}},
       .outputs = {{"dX", kGradientTypes, "T"}, {"dgrid", kGradientTypes, "T", Presence::optional}},
       .attributes = {{"align_corners", int64_t{0}}, {"mode", std::string_view("linear")}, {"padding_mode", std::string_view("zeros")}},
       .infer = infer_grid_sample_grad,
       .cost = sample_cost,
       .kernels = typed<GridSampleGrad, float, double>(),
       .write_function = write_grid_sample_grad,
       .function_opset = [](const Node&) { return 18; }},
      {.name = "AffineGrid",
       .since = {20},
       .inputs = {{"theta", kFloats, "T1"}, {"size", kInt64, "T2"}},
       .outputs = {{"grid", kFloats, "T1"}},
       .attributes = {{"align_corners", int64_t{0}}},
       .infer = infer_affine_grid,
       .cost = sample_cost,
       .kernels = typed<AffineGrid, float, double, Float16, BFloat16>(),
       .gradient = affine_grid_gradient,
       .value_inputs = {1}}};
}

}  // namespace treadle::ops
