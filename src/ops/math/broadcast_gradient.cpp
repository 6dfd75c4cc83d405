// Implements BroadcastGrad of the treadle domain: it sums a gradient over broadcast axes that are known only during the run.
#include "ops/math/broadcast_gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "kernels/reduce/reduce.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Computes dX by summing dY over the axes that X lacks and over those where X has extent 1.
template <typename T>
struct BroadcastGrad {
  kernels::ReducePlan plan;
  bool sums;

  static BroadcastGrad bind(BindContext& c) {
    const uint32_t axes = broadcast_axes(c.shape(0), c.output_shape(0));
    return {kernels::plan_reduce(c.shape(0).dims(), axes), axes != 0};
  }
  void run(RunContext& c) const {
    if (sums)
      kernels::reduce<T>(kernels::Reduce::sum, plan, c.in<T>(0), c.out<T>(0), c.pool());
    else
      std::copy_n(c.in<T>(0), plan.kept.size, c.out<T>(0));
  }
};

Cost broadcast_grad_cost(const ShapeContext& c) { return {static_cast<double>(c.num_elements(0)), c.size_bytes(0)}; }

}  // namespace

uint32_t broadcast_axes(const Shape& wide, const Shape& narrow) {
  const int extra = wide.rank() - narrow.rank();
  uint32_t axes = 0;
  bool fits = extra >= 0;
  for (int axis = 0; fits && axis < wide.rank(); ++axis) {
    if (axis < extra || (narrow[axis - extra] == 1 && wide[axis] != 1))
      axes |= 1U << axis;
    else
      fits = narrow[axis - extra] == wide[axis];
  }
  if (!fits)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the gradient {} is of nothing that {} was broadcast to", to_string(wide), to_string(narrow)));
  return axes;
}

std::vector<OpDef> broadcast_gradient_ops() {
  constexpr TypeSet kTypes{DType::float32, DType::float64};
  return {{.name = "BroadcastGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"shape", kInt64}},
           .outputs = {{"dX", kTypes, "T"}},
           .infer = infer_given_shape<1>,
           .cost = broadcast_grad_cost,
           .kernels = typed<BroadcastGrad, float, double>(),
           .gradient = [](GradientContext& g) { return std::vector{expand_like(g, g.grad_output(0), g.input(0))}; },
           .value_inputs = {1}}};
}

}  // namespace treadle::ops
