// Other orders of a program's instructions, in which less memory may do.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/ids.h"

namespace treadle::exec {

class Binding;

/// Orders in which every instruction finds what it finds in the program's, which is the first one.
std::vector<std::vector<InstructionId>> orders_to_try(const Binding& binding);

}  // namespace treadle::exec
