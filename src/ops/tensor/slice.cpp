// Implements Slice, which reads a range with a step along each axis.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/named_axes.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// An end of at least this number means "to the end" in exported models.
constexpr int64_t kFar = std::numeric_limits<int32_t>::max();

struct Range {
  int64_t start, count;
};

// Clamps as the specification says: start and end to [0, extent] for positive steps; start to [0, extent - 1] and end to [-1, extent - 1]
// for negative steps.
Range clamp_range(int64_t start, int64_t end, int64_t step, int64_t extent) {
  if (step == 0) throw Error(ErrorCode::invalid_argument, "a step of 0");
  if (extent == 0) return {0, 0};
  // Clamps numbers far outside of the axis first, so that the sums do not overflow.
  auto from_end = [extent](int64_t at) { return at < 0 ? (at < -extent ? int64_t{-1} : at + extent) : std::min(at, extent); };
  auto is_before = [extent](int64_t at) { return at < -extent; };
  if (step > 0) {
    start = is_before(start) ? 0 : from_end(start);
    end = is_before(end) ? 0 : from_end(end);
    const int64_t length = std::max<int64_t>(end - start, 0);
    return {start, length == 0 ? 0 : (length - 1) / step + 1};
  }
  start = is_before(start) ? 0 : std::min(from_end(start), extent - 1);
  end = is_before(end) ? -1 : std::min(from_end(end), extent - 1);
  const int64_t length = std::max<int64_t>(start - end, 0);
  return {start, length == 0 ? 0 : (length - 1) / -(std::max(step, -kFar)) + 1};
}

// Converts a symbolic start or end to one that counts from the start of the axis; it is not clamped. Returns false if its sign is unknown,
// because negative numbers count from the end.
bool count_from_start(Dim& at, const Dim& extent) {
  if (is_nonnegative(at)) return true;
  if (!is_nonnegative(Dim(-1) - at)) return false;
  at = extent + at;
  return true;
}

// Computes the number of elements of a slice along one axis. Returns false if no expression can describe it.
bool sliced_extent(const Dim& extent, Dim start, Dim end, const Dim& step_dim, Dim& result) {
  if (!step_dim.is_const()) return false;
  const int64_t step = step_dim.value();
  if (extent.is_const() && start.is_const() && end.is_const()) {
    result = clamp_range(start.value(), end.value(), step, extent.value()).count;
    return true;
  }
  if (step == 0) throw Error(ErrorCode::invalid_argument, "a step of 0");
  if (step < -kFar || step > kFar) return false;
  if (step > 0) {
    const bool from_first = start.is_const() && (start.value() == 0 || start.value() <= -kFar);
    bool to_last = end == extent || (end.is_const() && end.value() >= kFar);
    if (start.is_const() && start.value() >= kFar) return result = 0, true;
    if (end.is_const() && end.value() <= -kFar) return result = 0, true;
    Dim length;
    if (from_first && to_last) {
      length = extent;
    } else if (to_last) {
      const bool counts_back = is_nonnegative(Dim(-1) - start);
      if (!counts_back && !is_nonnegative(start)) return false;
      length = counts_back ? at_most(Dim(0) - start, extent) : at_least_zero(extent - start);
    } else {
      if (from_first) start = 0;
      if (!count_from_start(start, extent) || !count_from_start(end, extent)) return false;
      length = at_least_zero(at_least_zero(at_most(end, extent)) - at_least_zero(at_most(start, extent)));
    }
    result = ceil_div(length, step);
    return true;
  }
  const Dim last = extent - 1;
  Dim first_taken = last, before = -1;
  if (!(start == last || (start.is_const() && (start.value() == -1 || start.value() >= kFar)))) {
    if (!count_from_start(start, extent)) return false;
    first_taken = at_most(at_least_zero(start), last);
  }
  if (!(end.is_const() && end.value() <= -kFar)) {
    if (!count_from_start(end, extent)) return false;
    before = at_most(maximum(end, -1), last);
  }
  result = ceil_div(at_least_zero(first_taken - before), -step);
  return true;
}

void infer_slice(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const int rank = c.rank(0);
  SymbolicShape out = c.shape(0);
  const auto starts = c.known(1), ends = c.known(2), steps = c.known(4);
  std::optional<std::vector<int64_t>> axes = c.known_ints(3);
  if (!c.has_input(3)) {
    std::optional<int64_t> count = starts ? static_cast<int64_t>(starts->size()) : c.has_rank(1) && c.rank(1) == 0 ? 1 : known_length(c, 1);
    if (!count && ends) count = static_cast<int64_t>(ends->size());
    if (count) {
      axes.emplace();
      for (int64_t i = 0; i < *count; ++i) axes->push_back(i);
    }
  }
  if (!axes) {
    for (Dim& extent : out) extent = data_dependent_dim(c, "slice", extent);
    return c.set_output(0, c.dtype(0), std::move(out));
  }
  auto check_count = [&](std::string_view name, const std::optional<KnownValues>& values) {
    if (values && values->size() != axes->size())
      throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} elements for {} axes", name, values->size(), axes->size()));
  };
  check_count("starts", starts), check_count("ends", ends), check_count("steps", steps);
  NamedAxes named;
  for (size_t i = 0; i < axes->size(); ++i) {
    const size_t axis = named.take((*axes)[i], rank);
    const bool all_known = starts && ends && (steps || !c.has_input(4));
    Dim count = 0;
    if (all_known && sliced_extent(c.shape(0)[axis], (*starts)[i], (*ends)[i], steps ? (*steps)[i] : Dim(1), count))
      out[axis] = count;
    else
      out[axis] = data_dependent_dim(c, "slice", out[axis]);
  }

  if (auto values = c.known(0); values && rank == 1 && starts && ends && axes->size() == 1 && (steps || !c.has_input(4))) {
    const Dim start = (*starts)[0], end = (*ends)[0], step = steps ? (*steps)[0] : Dim(1);
    if (start.is_const() && end.is_const() && step.is_const()) {
      const Range range = clamp_range(start.value(), end.value(), step.value(), static_cast<int64_t>(values->size()));
      KnownValues taken;
      for (int64_t i = 0; i < range.count; ++i) taken.push_back((*values)[static_cast<size_t>(range.start + i * step.value())]);
      c.set_known(0, std::move(taken));
    }
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

struct Slice {
  DType dtype;
  int64_t offset;
  kernels::CopyPlan plan;

  static Slice bind(BindContext& c) {
    const Shape& in = c.shape(0);
    int64_t starts[kMaxRank] = {}, steps[kMaxRank], counts[kMaxRank];
    for (int axis = 0; axis < in.rank(); ++axis) steps[axis] = 1, counts[axis] = in[axis];
    bool any_empty = false;
    NamedAxes named;
    for (int64_t i = 0; i < c.value_count(1); ++i) {
      const auto axis = static_cast<int>(named.take(c.has_input(3) ? c.value_at(3, i) : i, in.rank()));
      const int64_t step = c.has_input(4) ? c.value_at(4, i) : 1;
      const Range range = clamp_range(c.value_at(1, i), c.value_at(2, i), step, in[axis]);
      starts[axis] = range.start, counts[axis] = range.count;
      // A single element needs no step, and a huge step would overflow.
      steps[axis] = range.count > 1 ? step : 1;
    }
    for (int axis = 0; axis < in.rank(); ++axis) any_empty |= counts[axis] == 0;
    const auto rank = static_cast<size_t>(in.rank());
    return {c.dtype(0), any_empty ? 0 : kernels::slice_offset(in.dims(), {starts, rank}),
            kernels::plan_slice(in.dims(), {starts, rank}, {steps, rank}, {counts, rank})};
  }
  void run(RunContext& c) const { move_elements(plan, dtype, c.in<void>(0), offset, c.out<void>(0), 0, c.pool()); }
};

void attributes_to_inputs(Graph& graph, NodeId id) {
  ints_to_input(graph, id, "starts", 1);
  ints_to_input(graph, id, "ends", 2);
  ints_to_input(graph, id, "axes", 3);
}

// Returns true if the slice is the whole input: every axis keeps its extent, with step 1. (A step of -1 would reverse the axis.)
bool takes_all(const Graph& graph, const Node& node) {
  return keeps_type_and_shape(graph, node) && (!node.has_input(4) || all_integers_are(graph, node.inputs[4], 1));
}

Gradients slice_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0), g.shape_of(g.input(0))};
  for (size_t i = 1; i < 5; ++i) inputs.push_back(g.input(i));
  while (inputs.back() == kNoValue) inputs.pop_back();
  return {g.op("SliceGrad", std::move(inputs), {}, "treadle")};
}

}  // namespace

std::vector<OpDef> slice_ops() {
  return {{.name = "Slice",
           .since = {1, 10, 11, 13},
           .upgrade = {{1, attributes_to_inputs}},
           .inputs = {{"data", kAllTensors, "T"},
                      {"starts", kInt32Or64, "Tind"},
                      {"ends", kInt32Or64, "Tind"},
                      {"axes", kInt32Or64, "Tind", Presence::optional},
                      {"steps", kInt32Or64, "Tind", Presence::optional}},
           .outputs = {{"output", kAllTensors, "T"}},
           .infer = infer_slice,
           .cost = move_cost,
           .kernels = {kernel<Slice>()},
           .gradient = slice_gradient,
           .value_inputs = {1, 2, 3, 4},
           .moves = Moves::anywhere,
           .quantization = Quantization::chooses,
           .channels_last = {ChannelsLast::How::axes_vector},
           .returns_input = takes_all}};
}

}  // namespace treadle::ops
