// The state that Scaler and Imputer of ai.onnx.ml keep for a node (PackedState). Their attributes have one element, or one element per
// column of X.
#pragma once

#include <string_view>
#include <vector>

#include "ops/ml/common.h"

namespace treadle::ops {

/// Returns the extent of the last axis; 1 for a scalar.
inline int64_t last_extent(const Shape& shape) { return shape.rank() == 0 ? 1 : shape.back(); }

/// Checks the length of an attribute. @throws Error(invalid_argument) unless it has one element, or one per column
inline void check_per_column(int64_t count, std::string_view name, int64_t columns) {
  if (count != 1 && count != columns)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has {} elements; expected 1 or {}, the last extent of X", name, count, columns));
}

/// The state of Scaler.
struct ScalerModel final : PackedState {
  std::vector<float> offset, scale;
};

/// The state of Imputer.
template <typename X>
struct ImputerModel final : PackedState {
  X replaced{};
  std::vector<X> imputed;
};

}  // namespace treadle::ops
