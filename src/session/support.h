// Finds the parts of a model that this build does not support.
#pragma once

#include <string>
#include <vector>

#include "session/model.h"

namespace treadle {

/// Returns one text for each missing operator (with the nodes that use it), and for each node with invalid attributes, dtypes or shapes or
/// without a kernel. Empty if a session can be made of the model.
std::vector<std::string> find_unsupported(const Model::Impl& model);

}  // namespace treadle
