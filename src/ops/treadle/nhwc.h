// Helpers for operators on images with channels last: X[N, spatial..., C], with one or two spatial axes.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/conv/nhwc.h"
#include "ops/functions.h"
#include "treadle/error.h"

namespace treadle::ops {

inline SymbolicShape inner(const SymbolicShape& shape) { return {shape.begin() + 1, shape.end() - 1}; }
inline std::span<const int64_t> inner(const Shape& shape) { return shape.dims().subspan(1, static_cast<size_t>(shape.rank()) - 2); }

inline void check_image_rank(const InferContext& c, int input) {
  if (!c.has_rank(input) || c.rank(input) < 3 || c.rank(input) > 4)
    throw Error(ErrorCode::invalid_argument, "the image has a batch, one or two spatial axes, and channels");
}

/// Checks the channels against weights in ONNX's order, [filters, channels per group, spatial...].
inline void check_groups(const InferContext& c, const Dim& channels, const SymbolicShape& w) {
  const int64_t group = c.get_int("group", 1);
  if (w[0].is_const() && w[0].value() % group != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} filters cannot be split into {} groups", w[0].value(), group));
  if (channels.is_const() && w[1].is_const() && (channels.value() % group != 0 || channels.value() / group != w[1].value()))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("W has {} input channels, X has {} (group={})", w[1].value(), channels.value(), group));
}

inline Cost stream_cost(const ShapeContext& c) {
  return {static_cast<double>(c.num_elements(0)), c.size_bytes(0) + 4 * static_cast<double>(c.output_shape(0).num_elements())};
}

inline kernels::ConvEpilogue bind_epilogue(const ShapeContext& c, const std::string& prefix = "") {
  kernels::ConvEpilogue e;
  e.activation = activation_named(c.get_string(prefix + "activation", "none"));
  e.a = c.get_float(prefix + "alpha"), e.b = c.get_float(prefix + "beta");
  return e;
}

inline kernels::ConvChoice choice_of(const Attributes& attributes) {
  kernels::ConvChoice choice;
  if (const float expansion = attributes.get_float("max_weight_expansion"); expansion > 0)
    choice.max_weight_expansion = static_cast<double>(expansion);
  if (const std::vector<float>& r = attributes.get_floats("rates"); r.size() == 5) choice.rates = {r[0], r[1], r[2], r[3], r[4]};
  return choice;
}

/// Returns the parameters of a NhwcConv, without the choice of a method. @throws Error(invalid_argument) if operands are inconsistent.
kernels::ConvParams bind_nhwc_conv(const BindContext& c);
/// Returns the kernel of NhwcConv for weights that are not constant: computed or trained ones.
KernelDef nhwc_conv_of_computed_weights();

}  // namespace treadle::ops
