// Custom operators: an OpDef around a plugin's callbacks.
#pragma once

#include "treadle/plugin.h"

namespace treadle::plugin {

/// Copies the description; its callbacks and `user` must stay valid. @throws Error(invalid_argument) naming what is missing or wrong.
void register_operator(const treadle_operator& op);

}  // namespace treadle::plugin
