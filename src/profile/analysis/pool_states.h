// Computes what the threads of the thread pool did during the profiled runs, and how long nodes waited for helper threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/trace/recorder.h"
#include "treadle/profile.h"

namespace treadle::profile {

struct Event {
  uint64_t start, end;
  int32_t node;  // index of the node; -1: the event is a wait
  int32_t thread;
  int64_t flops, bytes;  // 0 means unknown
  const Record* record = nullptr;
  uint64_t waited = 0;  // for nodes of the main graph: ticks from ready operands to the start
};

// A phase within a kernel, or the part of a node's work that a helper thread did.
struct KernelEvent {
  uint64_t start, end;
  int32_t node, phase, thread;  // phase: index in the node's kernel_phases; -1: part of a helper thread
};

// Orders events by start. Of events with the same start, the longer (outer) one comes first.
template <typename E>
bool is_outer_or_earlier(const E& a, const E& b) {
  return a.start != b.start ? a.start < b.start : a.end > b.end;
}

struct Run {
  uint64_t start, end;
  uint16_t number;
  bool of_profile;  // false: the run began while the profile was paused, or events of it were lost
  int32_t thread;
  std::vector<Event> events;
  std::vector<KernelEvent> kernel_events;
  int64_t launches = 0;
};

/// Returns the state of a pool thread that a record describes. @pre the record is of the kind `pool`
PoolState state_of(const Recording& recording, const Record& record);

/// Sets Profile::pool, and the barrier_ns of runs and nodes. @param runs  sorted by start; one for each of Profile::runs
void add_pool(const Recording& recording, const std::vector<Run>& runs, Profile& profile);

}  // namespace treadle::profile
