// The families of operators: functions of one file each, and a line of families.inc.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

using Family = std::vector<OpDef> (*)();

#define FAMILY(family, file, operators) std::vector<OpDef> family();
#include "ops/families.inc"
#undef FAMILY

#ifdef TREADLE_OPERATOR_FAMILIES
#include TREADLE_OPERATOR_FAMILIES  // the families that the build was configured with
#else
inline constexpr Family kFamilies[] = {
#define FAMILY(family, file, operators) family,
#include "ops/families.inc"
#undef FAMILY
};
#endif

}  // namespace treadle::ops
