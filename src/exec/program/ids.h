// What the parts of a program are numbered by, and those of the schedules that are made of it.
#pragma once

#include "core/ids.h"

namespace treadle::exec {

enum class SlotId : int32_t {};         ///< Program::slots()
enum class InstructionId : int32_t {};  ///< Program::instructions()
enum class BufferId : int32_t {};       ///< Program::buffers()
enum class StepId : int32_t {};         ///< StreamPlan::steps
enum class LocationId : int32_t {};     ///< StreamPlan::locations

inline constexpr SlotId kNoSlot{-1};
inline constexpr InstructionId kNoInstruction{-1};
inline constexpr BufferId kNoBuffer{-1};
inline constexpr StepId kNoStep{-1};
inline constexpr LocationId kNoLocation{-1};

}  // namespace treadle::exec
