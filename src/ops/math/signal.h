// Derives the parameters of DFT and STFT from a node's operands and attributes. The kernels of all devices use them.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// The input has the shape [before, extent, after, parts], the output [before, out_extent, after, out_parts]. A number has 1 part (real) or
/// 2 (real and imaginary).
struct DftPlan {
  int64_t before, extent, after, length, out_extent;
  int parts, out_parts;
  bool inverse, onesided;

  /// @throws Error(invalid_argument) if the axis or the length is invalid
  static DftPlan bind(const BindContext& c);
  /// Returns true if the input is half of a spectrum, from which a real signal is restored.
  bool hermitian() const { return inverse && onesided; }
};

/// Frames have `length` samples and begin `step` samples apart in a signal [batch, signal, parts]. The output is [batch, frames, bins, 2].
struct StftPlan {
  int64_t batch, signal, frames, bins, step, length;
  int parts;

  /// @throws Error(invalid_argument) if the window and a frame have different lengths
  static StftPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
