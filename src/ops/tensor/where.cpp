// Implements Where (ONNX, opset 16): y = condition ? x : y. All three inputs broadcast.
#include <complex>
#include <string>

#include "core/values/dispatch.h"
#include "graph/op_def.h"
#include "kernels/elementwise/choose.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  DType dtype = c.dtype(1) != DType::undefined ? c.dtype(1) : c.dtype(2);
  auto shape = broadcast_inputs(c);
  if (!shape) return c.set_output_dtype(0, dtype);
  c.set_output(0, dtype, *shape);
  if (!is_small_static(*shape)) return;
  auto condition = c.known(0), x = c.known(1), y = c.known(2);
  if (!condition || !x || !y) return;
  KnownValues choice = broadcast_known(*condition, c.shape(0), *shape), from_x = broadcast_known(*x, c.shape(1), *shape),
              from_y = broadcast_known(*y, c.shape(2), *shape);
  for (size_t i = 0; i < choice.size(); ++i) {
    if (!choice[i].is_const()) return;
    if (choice[i].is_const(0)) from_x[i] = from_y[i];
  }
  c.set_known(0, std::move(from_x));
}

// Where only copies elements, so one kernel serves all dtypes of the same size.
struct Where {
  kernels::BroadcastPlan<3> plan;
  DType dtype;

  static Where bind(BindContext& c) { return {plan_broadcast<3>(c, {0, 1, 2}), c.dtype(1)}; }

  // Selects with bit masks. Compilers turn a conditional expression into a branch, since the operand that is not selected might be
  // unreadable.
  template <typename T>
  static T choose(bool condition, T x, T y) {
    const T mask = static_cast<T>(T{0} - static_cast<T>(condition));
    return static_cast<T>((x & mask) | (y & ~mask));
  }

  template <typename T>
  void select(RunContext& c) const {
    const bool* conditions = c.in<bool>(0);
    const T* from_x = c.in<T>(1);
    const T* from_y = c.in<T>(2);
    T* out = c.out<T>(0);
    int64_t step_c = plan.inner_stride(0), step_x = plan.inner_stride(1), step_y = plan.inner_stride(2);
    parallel_runs(c.pool(), plan, [&](int64_t at, int64_t n, const int64_t* offset) {
      const bool* condition = conditions + offset[0];
      const T* x = from_x + offset[1];
      const T* y = from_y + offset[2];
      if (step_c == 0) {  // the condition is the same for the whole run
        const T* side = *condition ? x : y;
        int64_t step = *condition ? step_x : step_y;
        for (int64_t i = 0; i < n; ++i) out[at + i] = side[i * step];
        return;
      }
      if constexpr (std::is_same_v<T, uint32_t>)
        if (step_c == 1 && step_x <= 1 && step_y <= 1) return kernels::choose(condition, x, step_x, y, step_y, out + at, n);
      if constexpr (std::is_integral_v<T>) {
        if (step_x == 1 && step_y == 1) {
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[at + i] = choose(condition[i], x[i], y[i]);
          return;
        }
        if (step_x == 0 && step_y == 1) {
          T value = *x;
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[at + i] = choose(condition[i], value, y[i]);
          return;
        }
        if (step_x == 1 && step_y == 0) {
          T value = *y;
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < n; ++i) out[at + i] = choose(condition[i], x[i], value);
          return;
        }
      }
      for (int64_t i = 0; i < n; ++i) out[at + i] = condition[i] ? x[i * step_x] : y[i * step_y];
    });
  }

  void run(RunContext& c) const {
    if (dtype == DType::string) return select<std::string>(c);
    visit_element_size(dtype, [&]<typename T>() { select<T>(c); });
  }
};

std::optional<PointwiseStep> step(const Graph& graph, const Node& node) {
  if (dtype_of_value(graph, node.inputs[0]) != DType::boolean || !all_inputs_are(graph, node, DType::float32, 1)) return std::nullopt;
  return PointwiseStep{{.op_type = node.op_type, .operands = {}, .attributes = {}}, node.inputs};
}

Gradients where_gradient(GradientContext& g) {
  const ValueId condition = g.input(0), dy = g.grad_output(0), zero = g.scalar(0, dy);
  return {kNoValue, g.unbroadcast(g.op("Where", {condition, dy, zero}), g.input(1)),
          g.unbroadcast(g.op("Where", {condition, zero, dy}), g.input(2))};
}

}  // namespace

std::vector<OpDef> where_ops() {
  constexpr TypeSet kTypes = kNumeric | kBool | kString | kComplex;
  return {{.name = "Where",
           .since = {9, 16},
           .inputs = {{"condition", kBool, "B"}, {"X", kTypes, "T"}, {"Y", kTypes, "T"}},
           .outputs = {{"output", kTypes, "T"}},
           .infer = infer,
           .cost = elementwise_cost<1>,
           .alias = {may_reuse(0, 1), may_reuse(0, 2)},
           .kernels = {kernel<Where>()},
           .gradient = where_gradient,
           .pointwise = true,
           .moves = Moves::among_others,
           .step = step}};
}

}  // namespace treadle::ops
