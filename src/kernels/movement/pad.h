// Padding, ONNX's Pad.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "treadle/shape.h"

namespace treadle::kernels {

enum class PadMode : uint8_t { constant, reflect, edge, wrap };

struct PadPlan {
  PadMode mode = PadMode::constant;
  int rank = 0;  ///< at least 1
  int64_t in_dims[kMaxRank] = {}, out_dims[kMaxRank] = {};
  /// What is padded, elements [first, first + kept) of each axis, and how many elements stand in front of it. The modes that repeat
  /// elements repeat none that a negative pad has removed; the constant's mode keeps the whole axis, and `before` may be negative.
  int64_t first[kMaxRank] = {}, kept[kMaxRank] = {}, before[kMaxRank] = {};
  int64_t in_size = 0, out_size = 0;
};

/// @param before, after  elements added (negative: removed) at the two ends of each axis
/// @throws Error(invalid_argument) if an output extent is negative, or a mode other than constant has nothing to repeat.
PadPlan plan_pad(PadMode mode, std::span<const int64_t> dims, std::span<const int64_t> before, std::span<const int64_t> after);

/// @param value  the element of PadMode::constant; not looked at otherwise
void pad(const PadPlan& plan, size_t element_bytes, const void* src, const void* value, void* dst, ThreadPool* pool);

}  // namespace treadle::kernels
