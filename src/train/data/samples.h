// The extents of the samples of which a model's input consists.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/model.h"

namespace treadle::train {

/// Extents of one sample of a batch: all but the first; -1: unknown.
std::vector<int64_t> sample_extents(const ValueInfo& info);

}  // namespace treadle::train
