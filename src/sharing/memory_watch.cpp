#include "sharing/memory_watch.h"

#include <algorithm>
#include <utility>

#include "core/base/futex.h"

namespace treadle::sharing {
namespace {

constexpr int64_t kPatienceNs = 1'000'000'000;

}  // namespace

MemoryWatch& MemoryWatch::get() {
  static MemoryWatch& watch = *new MemoryWatch;  // never destroyed: sessions may outlive static objects
  return watch;
}

// A forked child constructs the mutex and the threads again: a thread of the parent may have held the mutex, and the parent's threads can
// be neither joined nor destroyed.
MemoryWatch::MemoryWatch()
    : reset_([this] {
        renew_in_child(mutex_);
        for (Watched& watched : all_) renew_in_child(watched.thread);
      }) {}

void MemoryWatch::listen(Watched& watched, uint32_t seen) {
  std::atomic<uint32_t>& changes = watched.job.slot().memory_changes;
  for (watched.client.limit_changed(/*may_wait=*/true); !watched.stop;) {
    futex_wait_shared(changes, seen, kPatienceNs);
    if (const uint32_t now = changes.load(); std::exchange(seen, now) != now) watched.client.limit_changed(/*may_wait=*/true);
  }
}

std::list<MemoryWatch::Watched>::iterator MemoryWatch::find(const Client& client) {
  return std::find_if(all_.begin(), all_.end(), [&](const Watched& one) { return &one.client == &client; });
}

void MemoryWatch::add(Client& client, JobState& job) {
  std::lock_guard lock(mutex_);
  const auto known = find(client);
  if (known != all_.end() && known->generation == fork_generation()) return;
  std::list<Watched> made, parents;
  Watched& watched = made.emplace_back(client, job);
  // The thread starts from the count of changes that the caller has seen, so that it misses no later limit.
  watched.thread = std::thread([&watched, seen = job.slot().memory_changes.load()] { listen(watched, seen); });
  std::lock_guard whole(list_mutex_);
  all_.splice(all_.end(), made);
  if (known != all_.end()) parents.splice(parents.end(), all_, known);
}

// Does nothing if the mutex is taken: then its holder or the client's own thread notifies the client.
void MemoryWatch::tell(int slot) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (Watched& watched : all_)
    if (watched.generation == fork_generation() && watched.job.index() == slot) watched.client.limit_changed(/*may_wait=*/false);
}

void MemoryWatch::remove(Client& client) {
  std::lock_guard lock(mutex_);
  const auto found = find(client);
  if (found == all_.end()) return;
  found->stop = true;
  if (found->thread.joinable()) {
    found->job.slot().memory_changes.fetch_add(1);
    futex_wake_shared(found->job.slot().memory_changes);
    found->thread.join();
  }
  std::lock_guard whole(list_mutex_);
  all_.erase(found);
}

}  // namespace treadle::sharing
