#include "treadle/profile.h"

namespace treadle {

std::vector<int64_t> ProfiledOperand::strides() const {
  if (!shape) return {};
  std::vector<int64_t> made(static_cast<size_t>(shape->rank()), 1);
  for (int axis = shape->rank() - 2; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    // From row to row, then as rows follow each other.
    made[i] = axis == shape->rank() - 2 && row_step != 0 ? row_step : made[i + 1] * (*shape)[axis + 1];
  }
  return made;
}

}  // namespace treadle
