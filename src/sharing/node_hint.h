// Facts about a node before it runs, for policies that let some nodes run beside a guaranteed job.
#pragma once

#include <cstdint>

namespace treadle::sharing {

/// The resource that limits a node's speed, estimated from the operator's cost.
enum class Bound : uint8_t { unknown = 0, compute = 1, memory = 2 };

struct NodeHint {
  uint32_t estimated_ns = 0;  ///< estimated time on one core; 0: unknown
  Bound bound = Bound::unknown;
};

}  // namespace treadle::sharing
