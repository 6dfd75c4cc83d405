// Custom operators: operators that callers add to the registry at run time.
#pragma once

#include "graph/op_def.h"

namespace treadle {

/// Name of an AttributeDef that allows attributes of any name and type.
inline constexpr std::string_view kAnyAttribute = "*";

/// Registers an operator so that find_op() finds it. Its `name` and `domain` are copied. A second operator of the same name replaces the
/// first for graphs that are read later; the first is not destroyed, as graphs may refer to it. @throws Error(invalid_argument) if there is
/// a built-in operator of that name
const OpDef* add_custom_op(OpDef op);

/// Returns true for an operator made by add_custom_op(), whose kernels may complete later (graph/deferred.h).
bool is_custom_op(const OpDef& op);

}  // namespace treadle
