// Gives each node its own copy of an initializer that several nodes share.
#pragma once

#include <string>
#include <vector>

#include "treadle/train.h"

namespace treadle::train {

/// Warns of trained parameters that several nodes read and whose elements all have one value, such as biases of zeros: an exporter may
/// have merged separate parameters.
void warn_of_merged(const Model& model, const std::vector<std::string>& trained, const SessionOptions& session);

}  // namespace treadle::train
