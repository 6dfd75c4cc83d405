// The flat form of a program as text: instructions, where their operands live, what the plan makes of it.
#pragma once

#include <string>

#include "exec/program/program.h"

namespace treadle::exec {

std::string describe(const Program& program);

}  // namespace treadle::exec
