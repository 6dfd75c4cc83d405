// Implements OneHot: a row for each index, filled with `values[0]`, but with `values[1]` at the position of the index.
#include <fmt/format.h>

#include "core/base/to_integer.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Reads `depth`. It may have any numeric dtype, and be a scalar or a vector of one element.
int64_t depth_of(const Tensor& depth) {
  if (depth.num_elements() != 1) throw Error(ErrorCode::invalid_argument, fmt::format("depth is {}; expected one number", describe(depth)));
  const auto value = visit_dtype<NumericTypes>(
      depth.dtype(), [&]<typename T>() { return to_integer<int64_t>(static_cast<compute_type_t<T>>(*depth.data<T>())); });
  if (value < 0) throw Error(ErrorCode::invalid_argument, fmt::format("depth = {} is negative", value));
  return value;
}

void infer_one_hot(InferContext& c) {
  if (c.has_rank(2)) {
    const Dim count = product(c.shape(2));
    if (count.is_const() && !count.is_const(2))
      throw Error(ErrorCode::invalid_argument, fmt::format("values is {}; expected two numbers, off and on", to_string(c.input(2))));
  }
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(2));
  const int axis = c.axis("axis", -1, c.rank(0) + 1);
  Dim depth;
  if (c.constant(1))
    depth = depth_of(*c.constant(1));
  else if (auto known = c.known(1); known && known->size() == 1)
    depth = (*known)[0];
  else
    depth = c.data_dependent_dim("depth");
  SymbolicShape out = c.shape(0);
  out.insert(out.begin() + axis, depth);
  c.set_output(0, c.dtype(2), std::move(out));
}

template <typename Index>
struct OneHot {
  DType dtype;
  OneHotPlan plan;
  static OneHot bind(BindContext& c) { return {c.dtype(2), OneHotPlan::bind(c)}; }
  void run(RunContext& c) const {
    const int64_t outer = plan.outer, depth = plan.depth, inner = plan.inner;
    const Index* indices = c.in<Index>(0);
    const void* values = c.in<void>(2);
    void* out = c.out<void>(0);
    visit_access(dtype, [&]<typename Access>() {
      for (int64_t i = 0; i < outer * depth * inner; ++i) Access::copy(out, i, values, 0);
      for (int64_t i = 0; i < outer * inner; ++i) {
        int64_t index = to_integer<int64_t>(static_cast<compute_type_t<Index>>(indices[i]));
        if (index < 0) index += depth;
        // For an index outside [0, depth), the whole row has `values[0]`.
        if (index >= 0 && index < depth) Access::copy(out, (i / inner * depth + index) * inner + i % inner, values, 1);
      }
    });
  }
};

// The gradient of `values`: the sum of dY over the positions of the indices for values[1], and over all others for values[0].
Gradients one_hot_gradient(GradientContext& g) {
  const ValueId values = g.input(2), dy = g.grad_output(0);
  auto of_two = [&](double off, double on) {
    auto number = [&](double value) { return g.op("Unsqueeze", {g.scalar(value, values), g.ints({0})}); };
    const ValueId pair = g.op("Concat", {number(off), number(on)}, {{"axis", int64_t{0}}});
    const ValueId mask = g.op("OneHot", {g.input(0), g.input(1), pair}, {{"axis", g.attributes().get_int("axis", -1)}});
    return g.op("Reshape", {g.op("ReduceSum", {g.mul(dy, mask)}, {{"keepdims", int64_t{0}}}), g.ints({1})});
  };
  return {kNoValue, kNoValue, g.op("Concat", {of_two(1, 0), of_two(0, 1)}, {{"axis", int64_t{0}}})};
}

}  // namespace

std::vector<OpDef> one_hot_ops() {
  return {{.name = "OneHot",
           .since = {9, 11, 28},
           .inputs = {{"indices", kNumeric}, {"depth", kNumeric}, {"values", kAllTensors, "T3"}},
           .outputs = {{"output", kAllTensors, "T3"}},
           .attributes = {{"axis", int64_t{-1}}},
           .infer = infer_one_hot,
           .cost = move_cost,
           .kernels =
               typed<OneHot, int64_t, int32_t, float, double, Float16, BFloat16, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>(),
           .gradient = one_hot_gradient,
           .value_inputs = {1}}};
}

}  // namespace treadle::ops
