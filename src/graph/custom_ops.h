// Operators that are added to the registry while the process runs.
#pragma once

#include "graph/op_def.h"

namespace treadle {

/// The name of an AttributeDef that stands for attributes of any name and type.
inline constexpr std::string_view kAnyAttribute = "*";

/// Adds an operator to those that `find_op` finds. Its `name` and `domain` are copied. A second one of the same name takes its place for
/// graphs that are read from then on; the first stays, because graphs may refer to it.
/// @throws Error(invalid_argument) if the build itself has an operator of that name.
const OpDef* add_custom_op(OpDef op);

/// True for what add_custom_op() has made: its kernels may defer (graph/deferred.h).
bool is_custom_op(const OpDef& op);

}  // namespace treadle
