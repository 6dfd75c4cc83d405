// Slots, instructions, steps and the like are numbered by int32_t, with -1 for none; containers want another type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treadle::exec {

/// @pre i >= 0
inline size_t index(int32_t i) { return static_cast<size_t>(i); }

}  // namespace treadle::exec
