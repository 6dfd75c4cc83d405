#include "exec/memory/job_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/logging.h"

namespace treadle::exec {

std::shared_ptr<JobMemory> JobMemory::of(const std::shared_ptr<sharing::JobState>& job) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<const sharing::JobState*, std::weak_ptr<JobMemory>>;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  if (auto found = known.find(job.get()); found != known.end())
    if (auto memory = found->second.lock()) {
      sharing::MemoryWatch::get().add(*memory, *job);  // added again, because a forked child lacks the watching thread
      return memory;
    }
  auto made = std::make_shared<JobMemory>(job);
  known[job.get()] = made;
  return made;
}

JobMemory::JobMemory(std::shared_ptr<sharing::JobState> job)
    : job_(std::move(job)),
      places_{
          {{std::make_shared<MemoryAccount>(fmt::format("the job \"{}\" on its devices", slot().name)), &sharing::JobSlot::device_bytes},
           {std::make_shared<MemoryAccount>(fmt::format("the host's memory of the job \"{}\"", slot().name)),
            &sharing::JobSlot::host_bytes},
           {std::make_shared<MemoryAccount>(fmt::format("files of the job \"{}\"", slot().name)), &sharing::JobSlot::disk_bytes}}},
      account_(std::make_shared<MemoryAccount>(fmt::format("the job \"{}\"", slot().name), 0, on_host())) {
  follow();
  sharing::MemoryWatch::get().add(*this, *job_);
}

JobMemory::~JobMemory() {
  sharing::MemoryWatch::get().remove(*this);
  report();
  // The reported bytes are subtracted only when this object is destroyed, since tensors may outlive the sessions that made them.
  for (const Place& place : places_) (slot().*place.in_table).fetch_sub(place.reported);
}

uint64_t JobMemory::host_limit() const {
  const uint64_t set = slot().host_limit.load(std::memory_order_relaxed);
  return set == 0 ? UINT64_MAX : set;
}

JobMemory::Limits JobMemory::in_table() const {
  const uint64_t of_device = slot().memory_limit.load(std::memory_order_relaxed);
  const uint64_t of_host = slot().host_limit.load(std::memory_order_relaxed);
  return {of_device, of_device == 0 || of_host == 0 ? std::max(of_device, of_host) : std::min(of_device, of_host)};
}

void JobMemory::take_over(const Limits& limits) {
  governor_.set_limit(*on_devices(), limits.first);
  governor_.set_limit(*account_, limits.second);
}

void JobMemory::follow() {
  if (in_table() == Limits{on_devices()->limit_bytes(), account_->limit_bytes()}) return;
  std::lock_guard lock(governor_.mutex);  // the mutex prevents a change between a run's admission and its allocation
  take_over(in_table());
}

void JobMemory::report() {
  sharing::JobSlot& slot = this->slot();
  std::lock_guard lock(report_mutex_);
  const uint64_t id = slot.id.load();
  const bool is_same = std::exchange(reported_id_, id) == id;
  for (Place& place : places_) {
    const uint64_t now = place.account->bytes(), before = std::exchange(place.reported, now);
    (slot.*place.in_table).fetch_add(now - (is_same ? before : 0));
  }
  const uint64_t most = std::max<uint64_t>(on_host()->statistics().total.peak_bytes, slot.device_bytes.load() + slot.host_bytes.load());
  uint64_t peak = slot.peak_bytes.load();
  while (most > peak && !slot.peak_bytes.compare_exchange_weak(peak, most)) {
  }
}

void tell_move(std::string_view where, size_t size_bytes, uint64_t took_ns) {
  const double ms = static_cast<double>(took_ns) * 1e-6;
  log_event(LogLevel::verbose, LogCategory::memory, {{"bytes", static_cast<int64_t>(size_bytes)}, {"ms", ms}},
            fmt::format("{} bytes move {} in {:.3f} ms", size_bytes, where, ms));
}

void JobMemory::moved(size_t size_bytes, uint64_t took_ns) {
  slot().moved_bytes.fetch_add(size_bytes, std::memory_order_relaxed);
  slot().moves.fetch_add(size_bytes > 0 ? 1 : 0, std::memory_order_relaxed);
  slot().moving_ns.fetch_add(took_ns, std::memory_order_relaxed);
}

void JobMemory::limit_changed(bool may_wait) {
  std::unique_lock lock(governor_.mutex, std::defer_lock);
  if (may_wait)
    lock.lock();
  else if (!lock.try_lock())
    return;
  take_over(in_table());
  governor_.keep_limit(*on_devices());
  governor_.keep_limit(*account_);
  if (!keeps_host_limit()) governor_.make_room(*on_host(), [this] { return keeps_host_limit(); });
  lock.unlock();
  report();
}

}  // namespace treadle::exec
