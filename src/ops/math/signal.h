// Derives what kernels of every device need to compute DFT and STFT nodes.
#pragma once

#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// The input is [before, extent, after, parts] and the output [before, out_extent, after, out_parts]; parts are 1 (real) or 2 (complex).
struct DftPlan {
  int64_t before, extent, after, length, out_extent;
  int parts, out_parts;
  bool inverse, onesided;

  /// @throws Error(invalid_argument) for a wrong axis or length
  static DftPlan bind(const BindContext& c);
  /// True if the input is half of the spectrum of a real signal.
  bool hermitian() const { return inverse && onesided; }
};

/// Frames of `length` samples, `step` apart, of a signal [batch, signal, parts]; the output is [batch, frames, bins, 2].
struct StftPlan {
  int64_t batch, signal, frames, bins, step, length;
  int parts;

  /// @throws Error(invalid_argument) if the window has another length than a frame
  static StftPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
