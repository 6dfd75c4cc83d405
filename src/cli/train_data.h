// Distributes a data set over processes (ranks) that train together.
#pragma once

#include <memory>

#include "treadle/data.h"

namespace treadle::cli {

/// Returns the samples of the rank that `loader` names. Every sample belongs to exactly one rank.
std::shared_ptr<const train::Dataset> part_of_rank(std::shared_ptr<const train::Dataset> data, const train::LoaderOptions& loader);

}  // namespace treadle::cli
