// Initializers that several nodes read, told apart.
#pragma once

#include <string>
#include <vector>

#include "treadle/train.h"

namespace treadle::train {

/// Warns of parameters that train as one though an exporter may have merged them: those of equal elements that several nodes read.
void warn_of_merged(const Model& model, const std::vector<std::string>& trained, const SessionOptions& session);

}  // namespace treadle::train
