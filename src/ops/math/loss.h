// Describes NegativeLogLikelihoodLoss and its gradient for kernels of every device.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/kernel.h"

namespace treadle::ops {

struct LossPlan {
  enum class Reduction : uint8_t { none, sum, mean };
  int64_t batch, classes, positions;  ///< positions per sample: d1 * d2 * ...
  int64_t ignore_index;
  bool ignores, weighted, wide_target;
  Reduction reduction;

  /// @throws Error(invalid_argument) if target or weights do not fit the scores
  static LossPlan bind(const BindContext& c);
  /// @throws Error(invalid_argument) if gradient, target or weights do not fit the scores, whose shape is that of the output
  static LossPlan bind_gradient(const BindContext& c);

  int64_t num_targets() const { return batch * positions; }
  bool ignored(int64_t label) const { return ignores && label == ignore_index; }

 private:
  static LossPlan of(const BindContext& c, const Shape& scores, int weights) {
    const std::string_view reduction = c.get_string("reduction", "mean");
    return {scores[0],
            scores[1],
            scores.product(2, scores.rank()),
            c.get_int("ignore_index"),
            c.node().attributes.has("ignore_index"),
            c.has_input(weights),
            c.dtype(1) == DType::int64,
            reduction == "none"   ? Reduction::none
            : reduction == "mean" ? Reduction::mean
                                  : Reduction::sum};
  }
};

}  // namespace treadle::ops
