// What the threads of a pool did during the runs of a profile, and how long nodes waited for helpers.
#pragma once

#include <cstdint>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

struct Event {
  uint64_t start, end;
  int32_t node;  // -1: a wait
  int32_t thread;
  int64_t flops, bytes;  // 0: not known
  const Record* record = nullptr;
  uint64_t waited = 0;  // of a step of the main graph: since all that it reads was there
};

// A phase of a kernel, or a helper's part in a node.
struct KernelEvent {
  uint64_t start, end;
  int32_t node, phase, thread;  // phase: of the node's kernel_phases; -1: the helper's part
};

// By start, an outer one before the inner ones that start with it.
template <typename E>
bool is_outer_or_earlier(const E& a, const E& b) {
  return a.start != b.start ? a.start < b.start : a.end > b.end;
}

struct Run {
  uint64_t start, end;
  uint16_t number;
  bool of_profile;  // false: it began while the profile was paused, or lacks events
  int32_t thread;
  std::vector<Event> events;
  std::vector<KernelEvent> kernel_events;
  int64_t launches = 0;
};

/// @pre the record is of the kind `pool`
PoolState state_of(const Recording& recording, const Record& record);

/// Fills Profile::pool, and barrier_ns of runs and nodes.
/// @param runs  of the profile, by their starts: one for each of Profile::runs
void add_pool(const Recording& recording, const std::vector<Run>& runs, Profile& profile);

}  // namespace treadle::profile
