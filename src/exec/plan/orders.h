// Finds orders of a program's instructions, other than its own, that may need less memory.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/ids.h"

namespace treadle::exec {

class Binding;

/// Returns the program's own order, followed by other orders in which every instruction reads the same values.
std::vector<std::vector<InstructionId>> orders_to_try(const Binding& binding);

}  // namespace treadle::exec
