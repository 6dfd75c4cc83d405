// The flat form of a program as text: instructions, where their operands live, what the plan makes of it.
#pragma once

#include <string>

#include "exec/plan/plans.h"

namespace treadle::exec {

std::string describe(Plans& plans);

}  // namespace treadle::exec
