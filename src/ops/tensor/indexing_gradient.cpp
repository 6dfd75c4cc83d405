// Implements gradients of Gather and Slice, operators of the treadle domain that add dY to a tensor of zeros. GatherGradRows is GatherGrad
// along the first axis, but it returns only the rows that have a gradient, and their indices.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "kernels/movement/gather.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/gather.h"
#include "ops/tensor/slice_gradient.h"
#include "treadle/error.h"

namespace treadle::ops {

SlicedPlaces SlicedPlaces::of(const BindContext& c) {
  const Shape &x = c.output_shape(0), &y = c.shape(0);
  const auto refuse = [&] {
    throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is of no slice of {}", to_string(y), to_string(x)));
  };
  if (y.rank() != x.rank()) refuse();
  SlicedPlaces places{};
  std::fill_n(places.strides, kMaxRank, int64_t{1});
  for (int64_t i = 0; i < c.value_count(2); ++i) {
    const int axis = normalize_axis(c.has_input(4) ? c.value_at(4, i) : i, x.rank(), "axes");
    const int64_t step = c.has_input(5) ? c.value_at(5, i) : 1, extent = x[axis];
    int64_t start = c.value_at(2, i);
    if (step == 0) throw Error(ErrorCode::invalid_argument, "a step is 0");
    if (start < 0) start += extent;
    places.strides[axis] = step;
    places.starts[axis] =
        step > 0 ? std::clamp<int64_t>(start, 0, extent) : std::clamp<int64_t>(start, 0, std::max<int64_t>(extent - 1, 0));
  }
  for (int axis = 0; axis < x.rank(); ++axis) {
    const int64_t first = places.starts[axis];
    const int64_t last = checked_add(first, checked_mul(std::max<int64_t>(y[axis] - 1, 0), places.strides[axis]));
    if (y[axis] > 0 && (last < 0 || last >= x[axis] || first >= x[axis])) refuse();
  }
  return places;
}

GatherExtents GatherExtents::bind_gradient(const BindContext& c) {
  const Shape& x = c.output_shape(0);
  const GatherExtents k = of(c, x);
  if (c.num_elements(0) != checked_mul(checked_mul(k.outer, k.num_indices), k.inner))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the gradient {} is of no Gather of {} from {}", to_string(c.shape(0)), to_string(c.shape(1)), to_string(x)));
  return k;
}

GatheredRowsPlan GatheredRowsPlan::bind(const BindContext& c) {
  const Shape& rows = c.output_shape(0);
  const GatheredRowsPlan k{c.value_at(2, 0), rows.product(1, rows.rank()), c.num_elements(1), rows[0], c.dtype(1) == DType::int64};
  if (c.num_elements(0) != checked_mul(k.count, k.inner))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the gradient {} is of no Gather of rows {} at {} places", to_string(c.shape(0)), to_string(rows), k.count));
  return k;
}

namespace {

constexpr TypeSet kTypes{DType::float32, DType::float64};

// Rows of dY with the same index are summed in order by the same thread: threads take different blocks of the outer axes.
template <typename T>
struct GatherGrad : GatherExtents {
  bool wide_index;

  static GatherGrad bind(BindContext& c) { return {bind_gradient(c), c.dtype(1) == DType::int64}; }
  void run(RunContext& c) const {
    if (wide_index)
      run_with<int64_t>(c);
    else
      run_with<int32_t>(c);
  }
  template <typename Index>
  void run_with(RunContext& c) const {
    const T* dy = c.in<T>(0);
    const Index* indices = c.in<Index>(1);
    T* dx = c.out<T>(0);
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, (extent + num_indices) * inner));
    parallel_for(c.pool(), outer, grain, [&](int64_t begin, int64_t end) {
      std::fill(dx + begin * extent * inner, dx + end * extent * inner, T{0});
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t i = 0; i < num_indices; ++i) {
          const int64_t index = kernels::checked_index(static_cast<int64_t>(indices[i]), extent);
          const T* from = dy + (o * num_indices + i) * inner;
          T* to = dx + (o * extent + index) * inner;
          for (int64_t k = 0; k < inner; ++k) to[k] += from[k];
        }
      }
    });
  }
};

// Computes GatherGradRows. The outputs have min(`count`, `extent`) rows, as no more indices can differ. Unused rows at the end are 0 and
// have the index -1. Rows of dY with the same index are summed in the same order as by GatherGrad, so the bits are the same.
template <typename T>
struct GatherGradRows : GatheredRowsPlan {
  struct Row {
    int64_t index, position;
    bool operator<(const Row& other) const { return index != other.index ? index < other.index : position < other.position; }
  };

  static GatherGradRows bind(BindContext& c) {
    const GatherGradRows k{GatheredRowsPlan::bind(c)};
    c.request_scratch(static_cast<size_t>(k.count) * sizeof(Row) + static_cast<size_t>(k.room + 1) * sizeof(int64_t));
    return k;
  }
  void run(RunContext& c) const {
    const T* dy = c.in<T>(0);
    auto* sorted = c.scratch<Row>();
    auto* firsts = reinterpret_cast<int64_t*>(sorted + count);  // for each output row, its first entry in `sorted`
    int64_t* places = c.out<int64_t>(1);
    const int64_t found =
        wide_index ? find_rows(c.in<int64_t>(1), sorted, firsts, places) : find_rows(c.in<int32_t>(1), sorted, firsts, places);
    T* rows = c.out<T>(0);
    parallel_for(c.pool(), room, 16384 / std::max<int64_t>(1, inner) + 1, [&](int64_t begin, int64_t end) {
      std::fill(rows + begin * inner, rows + end * inner, T{0});
      for (int64_t row = begin; row < std::min(end, found); ++row)
        for (int64_t i = firsts[row]; i < firsts[row + 1]; ++i) {
          const T* from = dy + sorted[i].position * inner;
          for (int64_t k = 0; k < inner; ++k) rows[row * inner + k] += from[k];
        }
    });
  }
  template <typename Index>
  int64_t find_rows(const Index* indices, Row* sorted, int64_t* firsts, int64_t* places) const {
    for (int64_t i = 0; i < count; ++i) sorted[i] = {kernels::checked_index(static_cast<int64_t>(indices[i]), extent), i};
    std::sort(sorted, sorted + count);
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i)
      if (i == 0 || sorted[i].index != sorted[i - 1].index) places[found] = sorted[i].index, firsts[found++] = i;
    firsts[found] = count;
    std::fill(places + found, places + room, int64_t{-1});
    return found;
  }
};

void infer_rows(InferContext& c) {
  c.set_output_dtype(0, c.dtype(0)), c.set_output_dtype(1, DType::int64);
  const auto shape = c.known(2);
  if (!shape || shape->empty() || !c.has_rank(1)) return;
  Dim count = 1;
  for (const Dim& extent : c.shape(1)) count = count * extent;
  SymbolicShape rows(shape->begin(), shape->end());
  rows[0] = minimum(count, rows[0]);
  c.set_output(1, DType::int64, {rows[0]});
  c.set_output(0, c.dtype(0), std::move(rows));
}

// Writes the elements of dY to the positions in dX that Slice has read. The other elements of dX are 0.
template <typename T>
struct SliceGrad {
  int rank;
  int64_t total, count;
  int64_t extents[kMaxRank];  // the extents of dY
  int64_t steps[kMaxRank];    // per axis of dY: distance in dX, in elements, between adjacent elements
  int64_t first;

  static SliceGrad bind(BindContext& c) {
    const SlicedPlaces places = SlicedPlaces::of(c);
    const Shape &x = c.output_shape(0), &y = c.shape(0);
    SliceGrad k{x.rank(), x.num_elements(), y.num_elements(), {}, {}, 0};
    int64_t stride = 1;
    for (int axis = k.rank - 1; axis >= 0; --axis) {
      k.extents[axis] = y[axis];
      k.steps[axis] = y[axis] > 1 ? places.strides[axis] * stride : 0;  // no overflow: the last element is inside X
      k.first += places.starts[axis] * stride;
      stride *= x[axis];
    }
    return k;
  }

  void run(RunContext& c) const {
    const T* dy = c.in<T>(0);
    T* dx = c.out<T>(0);
    std::fill_n(dx, total, T{0});
    if (count == 0) return;
    if (rank == 0) return void(*dx = *dy);
    const int64_t row = extents[rank - 1], step = steps[rank - 1];
    int64_t index[kMaxRank] = {};
    for (int64_t done = 0, at = first; done < count; done += row) {
      for (int64_t i = 0; i < row; ++i) dx[at + i * step] = dy[done + i];
      for (int axis = rank - 2; axis >= 0; --axis) {
        at += steps[axis];
        if (++index[axis] < extents[axis]) break;
        at -= extents[axis] * steps[axis];
        index[axis] = 0;
      }
    }
  }
};

// Second derivatives. As both operators are linear, they apply the forward operators Gather and Slice to the incoming gradient.

std::vector<ValueId> gather_grad_gradient(GradientContext& g) {
  return {g.op("Gather", {g.grad_output(0), g.input(1)}, {{"axis", g.attributes().get_int("axis", 0)}})};
}

std::vector<ValueId> slice_grad_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0)};
  for (size_t i = 2; i < 6; ++i) inputs.push_back(g.input(i));
  while (inputs.back() == kNoValue) inputs.pop_back();
  return {g.op("Slice", std::move(inputs))};
}

Cost cost(const ShapeContext& c) {
  return {static_cast<double>(c.num_elements(0)),
          c.size_bytes(0) + static_cast<double>(c.output_shape(0).num_elements()) * static_cast<double>(bits_of(c.dtype(0))) / 8};
}

}  // namespace

std::vector<OpDef> indexing_gradient_ops() {
  return {{.name = "GatherGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"indices", kInt32Or64}, {"shape", kInt64}},
           .outputs = {{"dX", kTypes, "T"}},
           .attributes = {{"axis", int64_t{0}}},
           .infer = infer_given_shape<2>,
           .cost = cost,
           .kernels = typed<GatherGrad, float, double>(),
           .gradient = gather_grad_gradient,
           .value_inputs = {2}},
          {.name = "GatherGradRows",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"indices", kInt32Or64}, {"shape", kInt64, "", Presence::required, of_rank(1)}},
           .outputs = {{"rows", kTypes, "T"}, {"places", kInt64}},
           .infer = infer_rows,
           .cost = cost,
           .kernels = typed<GatherGradRows, float, double>(),
           .value_inputs = {2}},
          {.name = "SliceGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"},
                      {"shape", kInt64},
                      {"starts", kInt32Or64, "Tind"},
                      {"ends", kInt32Or64, "Tind", Presence::optional},
                      {"axes", kInt32Or64, "Tind", Presence::optional},
                      {"steps", kInt32Or64, "Tind", Presence::optional}},
           .outputs = {{"dX", kTypes, "T"}},
           .infer = infer_given_shape<1>,
           .cost = cost,
           .kernels = typed<SliceGrad, float, double>(),
           .gradient = slice_grad_gradient,
           .value_inputs = {1, 2, 4, 5}}};
}

}  // namespace treadle::ops
