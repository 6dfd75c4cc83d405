// Declares a function that returns the extents of one sample of a model's input.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/model.h"

namespace treadle::train {

/// Returns the extents of one sample of a batch: all extents but the first; -1: unknown.
std::vector<int64_t> sample_extents(const ValueInfo& info);

}  // namespace treadle::train
