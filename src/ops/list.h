// Lists the families of operators. A family is a function that returns the operators of one file; families.inc has a row for each.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

using Family = std::vector<OpDef> (*)();

#define FAMILY(family, file, operators) std::vector<OpDef> family();
#include "ops/families.inc"
#undef FAMILY

#ifdef TREADLE_OPERATOR_FAMILIES
#include TREADLE_OPERATOR_FAMILIES  // lists the families that the build was configured with
#else
inline constexpr Family kFamilies[] = {
#define FAMILY(family, file, operators) family,
#include "ops/families.inc"
#undef FAMILY
};
#endif

}  // namespace treadle::ops
