// ONNX's operator Pad.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/threads/thread_pool.h"
#include "treadle/shape.h"

namespace treadle::kernels {

enum class PadMode : uint8_t { constant, reflect, edge, wrap };

struct PadPlan {
  PadMode mode = PadMode::constant;
  int rank = 0;  ///< number of dimensions, at least 1
  int64_t in_dims[kMaxRank] = {}, out_dims[kMaxRank] = {};
  /// For each axis: the range [first, first + kept) that is copied, and the number of elements added before it. A mode that repeats
  /// elements never repeats one that a negative pad removes. Constant mode keeps the whole axis, and `before` may be negative.
  int64_t first[kMaxRank] = {}, kept[kMaxRank] = {}, before[kMaxRank] = {};
  int64_t in_size = 0, out_size = 0;
};

/// Plans the padding. @param before, after  elements added (negative: removed) at both ends of each axis @throws Error(invalid_argument) if
/// an output extent is negative, or a mode other than constant has no element to repeat
PadPlan plan_pad(PadMode mode, std::span<const int64_t> dims, std::span<const int64_t> before, std::span<const int64_t> after);

/// Pads. @param value  the element for PadMode::constant; ignored otherwise
void pad(const PadPlan& plan, size_t element_bytes, const void* src, const void* value, void* dst, ThreadPool* pool);

}  // namespace treadle::kernels
