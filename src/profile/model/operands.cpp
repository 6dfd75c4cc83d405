#include "treadle/profile.h"

namespace treadle {
namespace {

// Multiplies with wrap-around on overflow, because shapes that were read from a file may contain any numbers.
int64_t wrapping_product(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }

}  // namespace

std::vector<int64_t> ProfiledOperand::strides() const {
  if (!shape) return {};
  std::vector<int64_t> made(static_cast<size_t>(shape->rank()), 1);
  for (int axis = shape->rank() - 2; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    // If the operand has a row step, it is the stride of the last axis but one. All other strides follow from the extents.
    made[i] = axis == shape->rank() - 2 && row_step != 0 ? row_step : wrapping_product(made[i + 1], (*shape)[axis + 1]);
  }
  return made;
}

}  // namespace treadle
