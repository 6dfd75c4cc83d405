// The extents with which the cache operators compute, derived from the shapes of their operands. Kernels of all devices use them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// Extents of CachePositions: [batch, length] new tokens are appended to a cache of `past` rows.
struct CachePositionsPlan {
  int64_t batch, length, past;
  bool causal;

  /// @throws Error(invalid_argument) if the shapes of the operands are inconsistent, as do the other bind functions below
  static CachePositionsPlan bind(const BindContext& c);
};

/// Extents of UpdateCache: each head gets `added` rows, after a cache of `past` rows. The output has `length` rows.
struct UpdateCachePlan {
  size_t element;  ///< bytes
  int64_t batch, heads, size, added, past, length;

  static UpdateCachePlan bind(const BindContext& c);
};

/// Extents of GatherBeams. The number of planes is samples * beams * heads; `columns` is the row length of the input cache_indirection.
struct GatherBeamsPlan {
  size_t element;  ///< bytes
  int64_t planes, heads, length, size, beams, columns;

  static GatherBeamsPlan bind(const BindContext& c);
};

/// Extents of WindowPositions: [batch, length] new tokens are appended to a cache that can hold `capacity` rows.
struct WindowPositionsPlan {
  enum Input : int { kQuery, kPast, kLengths, kTotal, kPositions, kCounts };
  int64_t batch, length, capacity, window;

  static WindowPositionsPlan bind(const BindContext& c);
};

/// Extents of UpdateWindow: each head gets `added` rows. The output `present` has `capacity` rows, the output `keys` has `length` rows.
struct UpdateWindowPlan {
  enum Input : int { kUpdate, kFirst, kRows, kKept, kPast, kCounts };
  enum Output : int { kPresent, kKeys };
  size_t element;  ///< bytes
  int64_t batch, heads, size, added, capacity, length;

  static UpdateWindowPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
