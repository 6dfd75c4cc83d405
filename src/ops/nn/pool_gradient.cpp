// Implements gradients of pools: MaxPoolGrad and AveragePoolGrad of the treadle domain, and the gradient rules.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "kernels/conv/pool.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/window.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::Window;

constexpr TypeSet kTypes{DType::float32, DType::float64};

// Checks that x and y agree in rank, batch and channels. The caller checks the other extents.
void check_planes(const Shape& x, const Shape& y) {
  if (x.rank() != y.rank() || x.rank() < 3 || x[0] != y[0] || x[1] != y[1])
    throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is of no pool over {}", to_string(y), to_string(x)));
}

}  // namespace

void check_max_pool_gradient(const BindContext& c) {
  const Shape& y = c.shape(0);
  check_planes(c.output_shape(0), y);
  if (!(c.shape(1) == y))
    throw Error(ErrorCode::invalid_argument, fmt::format("indices {} of a gradient {}", to_string(c.shape(1)), to_string(y)));
}

kernels::Window bind_average_pool_gradient(const BindContext& c) {
  const Shape &x = c.output_shape(0), &y = c.shape(0);
  check_planes(x, y);
  return bind_gradient_window(c.node().attributes, spatial(x), spatial(y), c.get_ints("kernel_shape"), y, "pool");
}

namespace {

int64_t grain_of(int64_t plane) { return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, plane)); }

// Adds each element of dY to dX at the position of its window's maximum. The rest of dX is 0.
template <typename T>
struct MaxPoolGrad {
  int64_t planes, in_size, out_size;

  static MaxPoolGrad bind(BindContext& c) {
    check_max_pool_gradient(c);
    const Shape &x = c.output_shape(0), &y = c.shape(0);
    return {x[0] * x[1], x.product(2, x.rank()), y.product(2, y.rank())};
  }
  void run(RunContext& c) const {
    const T* dy = c.in<T>(0);
    const int64_t* indices = c.in<int64_t>(1);
    T* dx = c.out<T>(0);
    parallel_for(c.pool(), planes, grain_of(in_size), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        T* out = dx + plane * in_size;
        std::fill_n(out, in_size, T{0});
        for (int64_t i = plane * out_size; i < (plane + 1) * out_size; ++i) {
          if (indices[i] < 0) continue;  // the window has only padding
          const int64_t place = indices[i] - plane * in_size;
          if (place < 0 || place >= in_size)
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("the index {} is outside plane {} of {} elements", indices[i], plane, in_size));
          out[place] += dy[i];
        }
      }
    });
  }
};

template <typename T>
struct AveragePoolGrad {
  Window window;
  int64_t planes;
  bool count_include_pad, sums;

  static AveragePoolGrad bind(BindContext& c) {
    return {bind_average_pool_gradient(c), c.shape(0)[0] * c.shape(0)[1], c.get_int("count_include_pad") != 0, c.get_int("sums") != 0};
  }

  void run(RunContext& c) const {
    const T* dy = c.in<T>(0);
    T* dx = c.out<T>(0);
    const Window& w = window;
    parallel_for(c.pool(), planes, grain_of(w.in_size()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        T* out = dx + plane * w.in_size();
        const T* in = dy + plane * w.out_size();
        std::fill_n(out, w.in_size(), T{0});
        for (int64_t od = 0; od < w.out[0]; ++od)
          for (int64_t oh = 0; oh < w.out[1]; ++oh)
            for (int64_t ow = 0; ow < w.out[2]; ++ow) spread(od, oh, ow, *in++, out);
      }
    });
  }

  void spread(int64_t od, int64_t oh, int64_t ow, T value, T* out) const {
    const Window& w = window;
    const kernels::Taps depth = taps_inside(w, 0, od), height = taps_inside(w, 1, oh), width = taps_inside(w, 2, ow);
    const int64_t count = kernels::pool_elements(w, 0, od, count_include_pad) * kernels::pool_elements(w, 1, oh, count_include_pad) *
                          kernels::pool_elements(w, 2, ow, count_include_pad);
    const T share = sums ? value : value / static_cast<T>(count);
    for (int64_t kd = depth.first; kd < depth.last; ++kd)
      for (int64_t kh = height.first; kh < height.last; ++kh) {
        T* row = out + ((depth.start + kd * w.dilation[0]) * w.in[1] + height.start + kh * w.dilation[1]) * w.in[2];
        for (int64_t kw = width.first; kw < width.last; ++kw) row[width.start + kw * w.dilation[2]] += share;
      }
  }
};

// Second derivatives: the gradients of MaxPoolGrad and AveragePoolGrad.

// Gathers the incoming gradient at the positions of the maxima.
std::vector<ValueId> max_pool_grad_gradient(GradientContext& g) {
  const ValueId indices = g.input(1), flat = g.op("Reshape", {g.grad_output(0), g.ints({-1})});
  const ValueId none = g.constant(Tensor::scalar<int64_t>(0)), inside = g.op("GreaterOrEqual", {indices, none});
  return {masked(g, inside, g.op("Gather", {flat, g.op("Where", {inside, indices, none})}))};
}

std::vector<ValueId> average_pool_grad_gradient(GradientContext& g) {
  const ValueId u = g.grad_output(0);
  Attributes attributes = g.attributes();
  attributes.erase("sums");
  if (g.attributes().get_int("sums", 0) == 0) return {g.op("AveragePool", {u}, attributes)};
  // Sums over windows with LpPool and p = 1. Since LpPool takes absolute values, positive and negative elements are summed separately.
  attributes.erase("count_include_pad");
  attributes.set("p", int64_t{1});
  auto sum = [&](ValueId value) { return g.op("LpPool", {g.op("Relu", {value})}, attributes); };
  return {g.sub(sum(u), sum(g.neg(u)))};
}

Cost pool_cost(const ShapeContext& c) { return {static_cast<double>(c.num_elements(0)), 2 * c.size_bytes(0)}; }

}  // namespace

std::vector<OpDef> pool_gradient_ops() {
  return {{.name = "MaxPoolGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"indices", kInt64}, {"shape", kInt64}},
           .outputs = {{"dX", kTypes, "T"}},
           .infer = infer_given_shape<2>,
           .cost = pool_cost,
           .kernels = typed<MaxPoolGrad, float, double>(),
           .gradient = max_pool_grad_gradient,
           .value_inputs = {2},
           .channels_last = {ChannelsLast::How::window_gradient, "NhwcMaxPoolGrad"}},
          {.name = "AveragePoolGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"shape", kInt64}},
           .outputs = {{"dX", kTypes, "T"}},
           .attributes = pool_attributes({{"count_include_pad", int64_t{0}}, {"sums", int64_t{0}}}),  // sums: windows are not averaged
           .infer = infer_given_shape<1>,
           .cost = pool_cost,
           .kernels = typed<AveragePoolGrad, float, double>(),
           .gradient = average_pool_grad_gradient,
           .value_inputs = {1}}};
}

}  // namespace treadle::ops
