// Derives what kernels of every device need to compute DFT, STFT and window nodes.
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

/// A window a0 - a1 cos(2 pi n / period) + a2 cos(4 pi n / period): HannWindow, HammingWindow or BlackmanWindow.
struct CosineWindowPlan {
  int64_t size, period;  ///< the period is the size of a periodic window, and the size minus 1 of a symmetric one
  double a0, a1, a2;

  static CosineWindowPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
