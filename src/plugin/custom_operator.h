// Custom operators: an OpDef around a plugin's callbacks.
#pragma once

#include "graph/op_def.h"
#include "treadle/plugin.h"

namespace treadle::plugin {

/// Copies the description; its callbacks and `user` must stay valid. @throws Error(invalid_argument) naming what is missing or wrong.
/// @param first_output  whether one that a model leaves out is made all the same
void register_operator(const treadle_operator& op, Presence first_output = Presence::required);

}  // namespace treadle::plugin
