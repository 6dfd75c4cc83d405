// Prints a program as text: its instructions, where their operands are, and the size of the arena.
#pragma once

#include <string>

#include "exec/plan/plans.h"

namespace treadle::exec {

std::string describe(Plans& plans);

}  // namespace treadle::exec
