// Everything that a model needs and this build lacks.
#pragma once

#include <string>
#include <vector>

#include "session/model.h"

namespace treadle {

/// One text per operator that is missing (with the nodes that want it), and per node whose attributes, dtypes or shapes are wrong or that
/// no kernel takes. Empty if a session can be made of the model.
std::vector<std::string> find_unsupported(const Model::Impl& model);

}  // namespace treadle
