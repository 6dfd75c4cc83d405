// What several processes that train together have of the data.
#pragma once

#include <memory>

#include "treadle/data.h"

namespace treadle::cli {

/// This rank's part of the samples, the others being theirs.
std::shared_ptr<const train::Dataset> part_of_rank(std::shared_ptr<const train::Dataset> data, const train::LoaderOptions& loader);

}  // namespace treadle::cli
