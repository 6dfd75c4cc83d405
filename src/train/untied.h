// Initializers that several nodes read, told apart.
#pragma once

#include <string>
#include <vector>

#include "treadle/train.h"

namespace treadle::train {

/// A warning that these parameters train as one, though an exporter may have merged them: float32 initializers of equal elements that
/// several nodes read. Empty if there are none.
std::string warning_of_merged(const Model& model, const std::vector<std::string>& trained);

}  // namespace treadle::train
