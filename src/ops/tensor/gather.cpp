// Implements Gather, GatherElements, GatherND, which read elements or slices by index.
#include "kernels/movement/gather.h"

#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/gather.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_gather(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape& data = c.shape(0);
  const int axis = c.axis("axis", 0, c.rank(0));
  if (!c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape out(data.begin(), data.begin() + axis);
  out.insert(out.end(), c.shape(1).begin(), c.shape(1).end());
  out.insert(out.end(), data.begin() + axis + 1, data.end());
  c.set_output(0, c.dtype(0), std::move(out));

  const auto values = c.rank(0) == 1 ? c.known(0) : std::nullopt;
  const auto indices = c.known_ints(1);
  if (!values || !indices) return;
  KnownValues taken;
  for (int64_t index : *indices)
    taken.push_back((*values)[static_cast<size_t>(kernels::checked_index(index, static_cast<int64_t>(values->size())))]);
  c.set_known(0, std::move(taken));
}

void infer_gather_elements(InferContext& c) {
  if (!c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  if (c.has_rank(0) && c.rank(0) != c.rank(1))
    throw Error(ErrorCode::invalid_argument, fmt::format("data are of rank {}, indices of rank {}", c.rank(0), c.rank(1)));
  c.axis("axis", 0, c.rank(1));
  c.set_output(0, c.dtype(0), c.shape(1));
}

void infer_gather_nd(InferContext& c) {
  if (c.has_rank(1) && c.rank(1) == 0) throw Error(ErrorCode::invalid_argument, "indices is a scalar; its last axis holds index tuples");
  if (!c.has_rank(0) || !c.has_rank(1) || !c.shape(1).back().is_const()) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape &data = c.shape(0), &indices = c.shape(1);
  const int64_t batch = c.get_int("batch_dims"), depth = indices.back().value();
  if (batch < 0 || batch >= c.rank(1) || batch + depth > c.rank(0))
    throw Error(ErrorCode::invalid_argument, fmt::format("index tuples of {} with batch_dims = {} do not fit data {} and indices {}", depth,
                                                         batch, to_string(data), to_string(indices)));
  SymbolicShape out(indices.begin(), indices.end() - 1);
  for (size_t i = 0; i < static_cast<size_t>(batch); ++i) out[i] = unify(data[i], indices[i], fmt::format("batch axis {}", i));
  out.insert(out.end(), data.begin() + batch + depth, data.end());
  c.set_output(0, c.dtype(0), std::move(out));
}

template <typename Index>
struct Gather : GatherExtents {
  DType dtype;

  static Gather bind(BindContext& c) { return {GatherExtents::of(c, c.shape(0)), c.dtype(0)}; }
  void run(RunContext& c) const {
    const Index* indices = c.in<Index>(1);
    if (has_plain_bytes(dtype))
      return kernels::gather(outer, extent, inner * element_bytes(dtype), c.in<void>(0), indices, num_indices, c.out<void>(0), c.pool());
    visit_access(dtype, [&]<typename Access>() {
      for (int64_t row = 0; row < outer * num_indices; ++row) {
        const int64_t at = row / num_indices * extent + kernels::checked_index(static_cast<int64_t>(indices[row % num_indices]), extent);
        for (int64_t i = 0; i < inner; ++i) Access::copy(c.out<void>(0), row * inner + i, c.in<void>(0), at * inner + i);
      }
    });
  }
};

// Calls fn with a C++ type for elements that occupy whole bytes, including strings. Dtypes whose elements share bytes are not allowed here.
template <typename Fn>
void visit_whole(DType dtype, Fn&& fn) {
  if (dtype == DType::string) return fn.template operator()<std::string>();
  kernels::visit_element(static_cast<size_t>(element_bytes(dtype)), fn);
}

template <typename Index>
struct GatherElements {
  DType dtype;
  kernels::ElementsPlan plan;
  static GatherElements bind(BindContext& c) {
    const Shape &data = c.shape(0), &indices = c.shape(1);
    const int axis = c.axis("axis", 0, data.rank());
    for (int i = 0; i < data.rank(); ++i)
      if (i != axis && indices[i] > data[i])
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("axis {} of the indices has {} elements, the data {}", i, indices[i], data[i]));
    return {c.dtype(0), kernels::plan_elements(data.dims(), indices.dims(), axis)};
  }
  void run(RunContext& c) const {
    visit_whole(dtype, [&]<typename T>() { kernels::gather_elements(plan, c.in<T>(0), c.in<Index>(1), c.out<T>(0), c.pool()); });
  }
};

struct GatherNd {
  DType dtype;
  kernels::TuplePlan plan;
  static GatherNd bind(BindContext& c) {
    return {c.dtype(0), kernels::plan_tuples(c.shape(0).dims(), c.shape(1).dims(), c.get_int("batch_dims"))};
  }
  void run(RunContext& c) const {
    const int64_t* indices = c.in<int64_t>(1);
    if (dtype != DType::string)
      return kernels::gather_nd(plan, static_cast<size_t>(element_bytes(dtype)), c.in<void>(0), indices, c.out<void>(0), c.pool());
    for (int64_t item = 0; item < plan.batch * plan.tuples; ++item) {
      const int64_t at = item / plan.tuples * plan.slices + kernels::slice_of(plan, indices + item * plan.depth);
      std::copy_n(c.in<std::string>(0) + at * plan.slice, plan.slice, c.out<std::string>(0) + item * plan.slice);
    }
  }
};

constexpr TypeSet kWhole = kNumeric | kBool | kString | kComplex | kFloat8;

Gradients gather_gradient(GradientContext& g) {
  return {
      g.op("GatherGrad", {g.grad_output(0), g.input(1), g.shape_of(g.input(0))}, {{"axis", g.attributes().get_int("axis", 0)}}, "treadle")};
}

Gradients gather_elements_gradient(GradientContext& g) {
  return {g.op("ScatterElements", {zeros_like(g, g.input(0)), g.input(1), g.grad_output(0)},
               {{"axis", g.attributes().get_int("axis", 0)}, {"reduction", std::string("add")}})};
}

// If batch_dims is set, the indices of the batch axes are added to the index tuples, which then need no batch_dims.
Gradients gather_nd_gradient(GradientContext& g) {
  ValueId indices = g.input(1);
  const int batch_dims = static_cast<int>(g.attributes().get_int("batch_dims", 0)), rank = rank_of(g, indices);
  if (batch_dims > 0) {
    auto integer = [&](int64_t value) { return g.constant(Tensor::scalar<int64_t>(value)); };
    const ValueId tuples = g.op("Concat", {g.op("Shape", {indices}, {{"end", int64_t{-1}}}), g.ints({1})}, {{"axis", int64_t{0}}});
    std::vector<ValueId> parts;
    for (int axis = 0; axis < batch_dims; ++axis) {
      const ValueId extent = g.op("Squeeze", {g.op("Shape", {indices}, {{"start", int64_t{axis}}, {"end", int64_t{axis} + 1}})});
      std::vector<int64_t> added;
      for (int a = 0; a < rank; ++a)
        if (a != axis) added.push_back(a);
      const ValueId places = g.op("Unsqueeze", {g.op("Range", {integer(0), extent, integer(1)}), g.ints(std::move(added))});
      parts.push_back(g.op("Expand", {places, tuples}));
    }
    parts.push_back(indices);
    indices = g.op("Concat", std::move(parts), {{"axis", int64_t{-1}}});
  }
  return {g.op("ScatterND", {zeros_like(g, g.input(0)), indices, g.grad_output(0)}, {{"reduction", std::string("add")}})};
}

}  // namespace

std::vector<OpDef> gather_ops() {
  return {
      {.name = "Gather",
       .since = {1, 11, 13},
       .inputs = {{"data", kAllTensors, "T"}, {"indices", kInt32Or64}},
       .outputs = {{"output", kAllTensors, "T"}},
       .attributes = {{"axis", int64_t{0}}},
       .infer = infer_gather,
       .cost = move_cost,
       .kernels = {kernel<Gather<int64_t>>("plain", DType::int64, 1), kernel<Gather<int32_t>>("plain", DType::int32, 1)},
       .gradient = gather_gradient,
       .moves = Moves::anywhere,
       .quantization = Quantization::chooses},
      {.name = "GatherElements",
       .since = {11, 13},
       .inputs = {{"data", kWhole, "T"}, {"indices", kInt32Or64}},
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"axis", int64_t{0}}},
       .infer = infer_gather_elements,
       .cost = move_cost,
       .kernels = {kernel<GatherElements<int64_t>>("plain", DType::int64, 1), kernel<GatherElements<int32_t>>("plain", DType::int32, 1)},
       .gradient = gather_elements_gradient},
      {.name = "GatherND",
       .since = {11, 12, 13},
       .inputs = {{"data", kWhole, "T"}, {"indices", kInt64}},
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"batch_dims", int64_t{0}}},
       .infer = infer_gather_nd,
       .cost = move_cost,
       .kernels = {kernel<GatherNd>()},
       .gradient = gather_nd_gradient},
  };
}

}  // namespace treadle::ops
