#include "session/in_flight.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>

#include "treadle/error.h"

namespace treadle {

void RunCounts::add(const RunCounts& more) {
  times.total += more.times.total;
  for (size_t b = 0; b < TickBuckets::kCount; ++b) times.counts[b] += more.times.counts[b];
  input_bytes += more.input_bytes, output_bytes += more.output_bytes;
  for (size_t code = 0; code < errors.size(); ++code) errors[code] += more.errors[code];
}

RunsInFlight::Entry::Entry(RunsInFlight& runs, uint64_t run_id, std::string_view tag)
    : runs_(runs), run_id_(run_id), tag_(tag), start_(read_ticks()), fork_generation_(fork_generation()) {
  std::lock_guard lock(runs.mutex_);
  if (runs.closed()) throw Error(ErrorCode::cancelled, runs.owner_ + " is closed");
  if (counts_runs() && !runs.counts_) runs.counts_ = std::make_unique<RunCounts>();
  next_ = runs.first_;
  if (next_) next_->previous_ = this;
  runs.first_ = this;
}

void RunsInFlight::Entry::runs_on_this_thread() {
  std::lock_guard lock(runs_.mutex_);
  helper_ = std::this_thread::get_id();
}

void RunsInFlight::Entry::caller_left() {
  std::lock_guard lock(runs_.mutex_);
  thread_ = {};
}

RunsInFlight::Entry::~Entry() {
  const uint64_t end = counts_runs() ? read_ticks() : 0;
  std::lock_guard lock(runs_.mutex_);
  if (end != 0 && runs_.counts_) {
    RunCounts& counts = *runs_.counts_;
    const uint64_t ticks = end - std::min(start_, end);
    counts.times.total += ticks;
    ++counts.times.counts[TickBuckets::of(ticks)];
    counts.input_bytes += input_bytes_, counts.output_bytes += output_bytes_;
  }
  (previous_ ? previous_->next_ : runs_.first_) = next_;
  if (next_) next_->previous_ = previous_;
  if (runs_.closed()) runs_.ended_.notify_all();  // under the lock, because the session may be destroyed once the lock is released
}

std::shared_ptr<RunsInFlight::Entry> RunsInFlight::enter(uint64_t run_id, std::string_view tag) {
  struct Tagged {
    std::shared_ptr<RunsInFlight> kept;
    std::string tag;
    Entry entry;
    Tagged(RunsInFlight& runs, uint64_t run_id, std::string_view given)
        : kept(runs.weak_from_this().lock()), tag(given), entry(runs, run_id, tag) {}
  };
  auto tagged = std::make_shared<Tagged>(*this, run_id, tag);
  return {tagged, &tagged->entry};
}

std::vector<UnfinishedRun> RunsInFlight::list(bool all) const {
  std::vector<UnfinishedRun> runs;
  const std::chrono::duration<double, std::milli> since_first = std::chrono::steady_clock::now() - first_time_;
  const uint64_t now = read_ticks();
  const double ms_per_tick = since_first.count() / static_cast<double>(std::max<uint64_t>(now - first_ticks_, 1));
  for (const Entry* entry = first_; entry; entry = entry->next_) {
    if (entry->fork_generation_ != fork_generation()) continue;
    const auto self = std::this_thread::get_id();
    if (!all && (entry->thread_ == self || entry->helper_ == self)) continue;
    const double elapsed_ms = ms_per_tick * static_cast<double>(now - std::min(entry->start_, now));
    runs.push_back({entry->run_id_, std::string(entry->tag_), static_cast<int64_t>(elapsed_ms)});
  }
  return runs;
}

std::vector<UnfinishedRun> RunsInFlight::close(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  closing_.store(true, std::memory_order_relaxed);
  auto others_ended = [&] { return list(/*all=*/false).empty(); };
  if (timeout_ms < 0)
    ended_.wait(lock, others_ended);
  else
    ended_.wait_for(lock, std::chrono::milliseconds(timeout_ms), others_ended);
  return list(/*all=*/true);
}

void RunsInFlight::count_bytes(size_t inputs, size_t outputs) {
  std::lock_guard lock(mutex_);
  if (counts_) counts_->input_bytes += inputs, counts_->output_bytes += outputs;
}

void RunsInFlight::count_error(size_t code) noexcept {
  if (!counts_runs()) return;
  std::lock_guard lock(mutex_);
  if (!counts_) counts_.reset(new (std::nothrow) RunCounts());
  if (counts_) ++counts_->errors[code];
}

RunCounts RunsInFlight::counts() const {
  std::lock_guard lock(mutex_);
  return counts_ ? *counts_ : RunCounts();
}

size_t RunsInFlight::count() const {
  std::lock_guard lock(mutex_);
  return list(/*all=*/true).size();
}

}  // namespace treadle
