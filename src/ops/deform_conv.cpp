// DeformConv over two spatial axes.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/deform.h"
#include "ops/checks.h"
#include "ops/convolution.h"
#include "ops/list.h"
#include "ops/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr ConvolutionInputs kInputs{0, 1, 3};

void infer_deform_conv(InferContext& c) { infer_convolution(c, kInputs, c.dtype(0)); }

Cost deform_conv_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(1);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1) + c.size_bytes(2)};
}

template <typename T>
struct DeformConv {
  using C = compute_type_t<T>;
  kernels::DeformParams params;
  Wide x, w, offset, bias, mask, y;
  int64_t work;
  int max_threads;

  static DeformConv bind(BindContext& c) {
    DeformConv k{};
    if (c.shape(0).rank() != 4)
      throw Error(ErrorCode::not_implemented, fmt::format("X is of rank {}; there is an implementation for rank 4", c.shape(0).rank()));
    k.params.conv = bind_convolution(c, kInputs);
    k.params.offset_group = c.get_int("offset_group", 1);
    const kernels::ConvParams& p = k.params.conv;
    if (k.params.offset_group < 1 || p.C % k.params.offset_group != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} channels cannot be split into {} groups of offsets", p.C, k.params.offset_group));
    const int64_t places = p.N * k.params.offset_group * p.window.kernel_size() * p.window.out_size();
    check_equal(c.num_elements(2), 2 * places, "elements of offset");
    if (c.has_input(4)) check_equal(c.num_elements(4), places, "elements of mask");
    k.max_threads = c.max_threads();
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, c.num_elements(0));
    k.w = reserve_wide<T>(layout, c.num_elements(1));
    k.offset = reserve_wide<T>(layout, c.num_elements(2));
    if (c.has_input(3)) k.bias = reserve_wide<T>(layout, c.num_elements(3));
    if (c.has_input(4)) k.mask = reserve_wide<T>(layout, c.num_elements(4));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    k.work = layout.take(kernels::deform_conv_scratch_bytes<C>(k.params, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const C *in = widen(c, c.in<T>(0), x), *filters = widen(c, c.in<T>(1), w), *moves = widen(c, c.in<T>(2), offset);
    const C *addend = widen(c, c.in<T>(3), bias), *factors = widen(c, c.in<T>(4), mask);
    kernels::deform_conv<C>(params, in, filters, moves, addend, factors, wide_output(c, c.out<T>(0), y), scratch_at(c, work), max_threads,
                            c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

}  // namespace

std::vector<OpDef> deform_conv_ops() {
  return {{.name = "DeformConv",
           .since = {19, 22},
           .inputs = {{"X", kFloats, "T"},
                      {"W", kFloats, "T"},
                      {"offset", kFloats, "T"},
                      {"B", kFloats, "T", Presence::optional},
                      {"mask", kFloats, "T", Presence::optional}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"dilations"}, {"group", int64_t{1}}, {"kernel_shape"}, {"offset_group", int64_t{1}}, {"pads"}, {"strides"}},
           .infer = infer_deform_conv,
           .cost = deform_conv_cost,
           .kernels = typed<DeformConv, float, double, Float16, BFloat16>()}};
}

}  // namespace treadle::ops
