// Checks that the attribute or operand `axes` names each axis at most once.
#pragma once

#include <fmt/format.h>

#include <bitset>

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::ops {

class NamedAxes {
 public:
  /// Records an axis, and returns it as a number that is not negative. @throws Error(invalid_argument) if there is no such axis, or if it
  /// was recorded before.
  size_t take(int64_t axis, int rank) {
    const auto place = static_cast<size_t>(normalize_axis(axis, rank, "axes"));
    if (named_[place]) throw Error(ErrorCode::invalid_argument, fmt::format("axes names axis {} twice", axis));
    named_.set(place);
    return place;
  }

 private:
  std::bitset<kMaxRank> named_;
};

}  // namespace treadle::ops
