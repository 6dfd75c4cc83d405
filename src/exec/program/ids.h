// Index types for the parts of a program, and for the schedules that are made from a program.
#pragma once

#include "core/base/ids.h"

namespace treadle::exec {

enum class SlotId : int32_t {};         ///< an index into Program::slots()
enum class InstructionId : int32_t {};  ///< an index into Program::instructions()
enum class BufferId : int32_t {};       ///< an index into Program::buffers()
enum class StepId : int32_t {};         ///< an index into StreamPlan::steps
enum class LocationId : int32_t {};     ///< an index into StreamPlan::locations

inline constexpr SlotId kNoSlot{-1};
inline constexpr InstructionId kNoInstruction{-1};
inline constexpr BufferId kNoBuffer{-1};
inline constexpr StepId kNoStep{-1};
inline constexpr LocationId kNoLocation{-1};

}  // namespace treadle::exec
