// Describes the operands of normalizations for kernels of every device. Operands that do not fit are Error(invalid_argument).
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "graph/kernel.h"
#include "ops/checks.h"

namespace treadle::ops {

/// Checks the operands of a normalization of groups of channels, whose inputs 1 and 2 are scale and bias.
inline void check_channel_groups(const BindContext& c, int64_t channels, int64_t groups) {
  if (groups < 1 ? channels != 0 : channels % groups != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} channels cannot be split into {} groups", channels, groups));
  check_equal(c.num_elements(1), channels, "scale and channels");
  check_equal(c.num_elements(2), channels, "bias and channels");
}

/// X of an InstanceNormalization or GroupNormalization as [N, channels, inner].
struct ChannelGroups {
  int64_t N, channels, groups, inner;
  static ChannelGroups bind(const BindContext& c);
};

/// X of a BatchNormalization or its gradient as [N, channels, inner].
struct BatchPlanes {
  int64_t N, channels, inner;
  static BatchPlanes of(const Shape& x) { return {x[0], x.rank() == 1 ? 1 : x[1], x.rank() < 3 ? 1 : x.product(2, x.rank())}; }
  static BatchPlanes bind(const BindContext& c);
  static BatchPlanes bind_gradient(const BindContext& c);
};

/// X of a LayerNormalizationGrad or RMSNormalizationGrad, or Y of a SoftmaxGrad.
struct GradientRows {
  int64_t rows, length;
  static GradientRows of_normalization(const BindContext& c);
  static GradientRows of_softmax(const BindContext& c);
};

/// X of an LRN as [N, channels, inner].
struct LocalResponsePlan {
  int64_t N, channels, inner, size;
  float alpha, beta, bias;
  static LocalResponsePlan bind(const BindContext& c);
};

/// Returns the axes of a MeanVarianceNormalization, as bits.
uint32_t mean_variance_axes(const BindContext& c);

}  // namespace treadle::ops
