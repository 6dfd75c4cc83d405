// Distributes data over processes that train together.
#pragma once

#include <memory>

#include "treadle/data.h"

namespace treadle::cli {

/// Returns the samples of this rank; every sample belongs to one rank.
std::shared_ptr<const train::Dataset> part_of_rank(std::shared_ptr<const train::Dataset> data, const train::LoaderOptions& loader);

}  // namespace treadle::cli
