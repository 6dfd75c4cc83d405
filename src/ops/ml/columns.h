// The states that nodes of Scaler and Imputer (ai.onnx.ml) make when the session is created. Their attributes have one element, or one
// element per column of X.
#pragma once

#include <string_view>
#include <vector>

#include "ops/ml/common.h"

namespace treadle::ops {

/// Returns the extent of the last axis, which is the number of columns; 1 for a scalar.
inline int64_t last_extent(const Shape& shape) { return shape.rank() == 0 ? 1 : shape.back(); }

/// Throws Error(invalid_argument) unless an attribute has one element, or one element per column.
inline void check_per_column(int64_t count, std::string_view name, int64_t columns) {
  if (count != 1 && count != columns)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has {} elements; expected 1 or {}, the last extent of X", name, count, columns));
}

/// The state of a Scaler node, made when the session is created.
struct ScalerModel final : PackedState {
  std::vector<float> offset, scale;
};

/// The state of an Imputer node, made when the session is created.
template <typename X>
struct ImputerModel final : PackedState {
  X replaced{};
  std::vector<X> imputed;
};

}  // namespace treadle::ops
