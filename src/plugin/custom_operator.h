// Custom operators: makes an OpDef from a plugin's callbacks.
#pragma once

#include "graph/op_def.h"
#include "treadle/plugin.h"

namespace treadle::plugin {

/// Registers an operator. Copies the description; the callbacks and `user` must stay valid.
/// @param first_output  whether the first output is computed even if the model omits it
/// @throws Error(invalid_argument) naming the missing or invalid field.
void register_operator(const treadle_operator& op, Presence first_output = Presence::required);

}  // namespace treadle::plugin
