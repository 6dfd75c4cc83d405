// The position of a parallel run: which instructions have run, and which are ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "exec/program/parallel_plan.h"

namespace treadle::exec {

/// Counts, for each instruction, the predecessors that have not run yet, and for each held value, the instructions that still need it.
/// Several threads may call finish() at the same time. Other functions may be called only while no thread calls finish().
class ReadyCursor {
 public:
  explicit ReadyCursor(const ParallelPlan& plan) : plan_(plan), counters_(plan.counters.size()) {}

  void begin() { counters_ = plan_.counters; }
  /// Returns true if all predecessors of the instruction have run, and note_run() has not been called for it.
  bool is_ready(InstructionId instruction) const { return counters_[index_of(instruction)] == 0; }
  /// Records that the instruction has run. Needed only in a run that may stop before its end.
  void note_run(InstructionId instruction) { counter(index_of(instruction)).store(-1, std::memory_order_relaxed); }
  bool is_noted(InstructionId instruction) const { return counters_[index_of(instruction)] < 0; }

  /// Called when the instruction has run.
  /// @param drop   called with each held slot that no instruction needs any more
  /// @param ready  called with each instruction that may run now
  template <typename Drop, typename Ready>
  void finish(InstructionId instruction, Drop&& drop, Ready&& ready) {
    const size_t i = index_of(instruction);
    for (uint32_t t = plan_.first_touch[i]; t < plan_.first_touch[i + 1]; ++t)
      if (count_down(static_cast<size_t>(plan_.touches[t].counter))) drop(plan_.touches[t].slot);
    for (uint32_t s = plan_.first_successor[i]; s < plan_.first_successor[i + 1]; ++s)
      if (count_down(index_of(plan_.successors[s]))) ready(plan_.successors[s]);
  }

 private:
  std::atomic_ref<int32_t> counter(size_t c) { return std::atomic_ref<int32_t>(counters_[c]); }
  bool count_down(size_t c) {
    const std::atomic_ref<int32_t> left = counter(c);
    if (left.load(std::memory_order_acquire) != 1) return left.fetch_sub(1, std::memory_order_acq_rel) == 1;
    left.store(0, std::memory_order_relaxed);  // the last user needs no atomic subtraction, because all others have done theirs
    return true;
  }

  const ParallelPlan& plan_;
  std::vector<int32_t> counters_;
};

}  // namespace treadle::exec
