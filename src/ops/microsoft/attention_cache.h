// Calls of the cache operators, as bound by the shapes of their operands, for kernels of every device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/kernel.h"

namespace treadle::ops {

/// CachePositions over [batch, length] new tokens, behind a cache of `past` rows.
struct CachePositionsPlan {
  int64_t batch, length, past;
  bool causal;

  /// @throws Error(invalid_argument) if the operands' shapes do not fit together; so do the functions below
  static CachePositionsPlan bind(const BindContext& c);
};

/// UpdateCache: `added` rows for each of the heads, behind a cache of `past` rows, into one of `length` rows.
struct UpdateCachePlan {
  size_t element;  ///< bytes
  int64_t batch, heads, size, added, past, length;

  static UpdateCachePlan bind(const BindContext& c);
};

/// GatherBeams: planes are samples times beams times heads; columns is the length of a row of the indirection.
struct GatherBeamsPlan {
  size_t element;  ///< bytes
  int64_t planes, heads, length, size, beams, columns;

  static GatherBeamsPlan bind(const BindContext& c);
};

/// WindowPositions over [batch, length] new tokens, behind a cache with room for `capacity` rows.
struct WindowPositionsPlan {
  enum Input : int { kQuery, kPast, kLengths, kTotal, kPositions, kCounts };
  int64_t batch, length, capacity, window;

  static WindowPositionsPlan bind(const BindContext& c);
};

/// UpdateWindow: `added` rows for each of the heads; the present has `capacity` rows, the keys have `length`.
struct UpdateWindowPlan {
  enum Input : int { kUpdate, kFirst, kRows, kKept, kPast, kCounts };
  enum Output : int { kPresent, kKeys };
  size_t element;  ///< bytes
  int64_t batch, heads, size, added, capacity, length;

  static UpdateWindowPlan bind(const BindContext& c);
};

}  // namespace treadle::ops
