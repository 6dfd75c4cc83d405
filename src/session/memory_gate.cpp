#include "session/memory_gate.h"

#include <fmt/format.h>

#include <chrono>

#include "core/checked.h"
#include "exec/run_memory.h"
#include "graph/graph.h"
#include "treadle/error.h"

namespace treadle {

void MemoryGate::set_limit(size_t limit_bytes) {
  std::lock_guard lock(mutex_);
  account_->set_limit(limit_bytes);
  generation_.fetch_add(1);
  left_.notify_all();
}

size_t MemoryGate::standing_bytes() const {
  const MemoryStatistics statistics = account_->statistics();
  return statistics[MemoryClass::weights].bytes + statistics[MemoryClass::packed].bytes + statistics[MemoryClass::scratch].bytes +
         statistics[MemoryClass::other].bytes;
}

MemoryGate::Pass::Pass(MemoryGate& gate, bool waits) : gate_(gate), waits_(waits) {
  if (!waits_) return;
  std::lock_guard lock(gate_.mutex_);
  ++gate_.arriving_;
}

MemoryGate::Pass::~Pass() {
  std::lock_guard lock(gate_.mutex_);
  gate_.later_bytes_ -= later_bytes_;
  gate_.left_.notify_all();
  if (!waits_) return;
  if (!arrived_) --gate_.arriving_;
  if (inside_) --gate_.inside_;
}

size_t MemoryGate::Pass::arena_capacity(size_t output_bytes) const {
  const size_t limit = gate_.account_->limit_bytes(), taken = gate_.standing_bytes() + output_bytes;
  if (limit == 0) return SIZE_MAX;
  return limit > taken ? (limit - taken) / Storage::kAlignment * Storage::kAlignment : 0;
}

std::unique_lock<std::mutex> MemoryGate::Pass::admit(size_t bytes, size_t later_bytes, const exec::RunControl& control) {
  constexpr std::chrono::milliseconds kLook{5};  // at what else may end the run: nobody tells of it
  std::unique_lock lock(gate_.mutex_);
  if (waits_ && !arrived_) --gate_.arriving_;
  arrived_ = true;
  bool trimmed = false;
  for (;;) {
    const size_t limit = gate_.account_->limit_bytes(), others = gate_.later_bytes_ - later_bytes_;
    const size_t used = gate_.account_->bytes() + others + later_bytes;
    if (limit == 0 || (used <= limit && bytes <= limit - used)) break;
    if (!trimmed) {
      gate_.trim_();
      trimmed = true;
      continue;
    }
    if (!waits_ || (gate_.inside_ == (inside_ ? 1 : 0) && gate_.arriving_ == 0))
      throw Error(ErrorCode::resource_exhausted, fmt::format("the memory limit of {} bytes leaves no {} bytes for the run: {} are in use "
                                                             "or to be left for runs under way, also by partial runs that have not "
                                                             "ended or by sizes that came out in a run",
                                                             limit, bytes, used));
    gate_.left_.wait_for(lock, kLook);
    trimmed = false;
    control.check();
  }
  if (!inside_ && waits_) ++gate_.inside_;
  inside_ = true;
  later_bytes_ += later_bytes;
  gate_.later_bytes_ += later_bytes;
  return lock;
}

void MemoryGate::Pass::refuse(size_t arena_bytes, size_t output_bytes, const exec::RunMemory& beside) const {
  const size_t standing = gate_.standing_bytes(), least = standing + output_bytes + arena_bytes + beside.certain_bytes;
  std::string message = fmt::format(
      "the memory limit of {} bytes is too low: this run needs at least {}, of which weights {}, outputs {}, "
      "activations and scratch {}",
      gate_.account_->limit_bytes(), least, standing, output_bytes, arena_bytes);
  if (beside.certain_bytes > 0) message += fmt::format(", bodies and values whose sizes come out in the run {}", beside.certain_bytes);
  if (beside.possible_bytes > beside.certain_bytes)
    message += fmt::format("; with the largest sizes that can come out, {}", least - beside.certain_bytes + beside.possible_bytes);
  if (beside.unbounded) message += fmt::format("; not counted is what comes out of {}", describe(*beside.unbounded));
  throw Error(ErrorCode::resource_exhausted, message);
}

}  // namespace treadle
