#include "sharing/memory_watch.h"

#include <algorithm>
#include <memory>

#include "core/futex.h"

namespace treadle::sharing {
namespace {

constexpr int64_t kPatienceNs = 1'000'000'000;

// As if the limit had changed.
void announce(JobSlot& slot) {
  slot.memory_changes.fetch_add(1);
  futex_wake_shared(slot.memory_changes);
}

}  // namespace

MemoryWatch& MemoryWatch::get() {
  static MemoryWatch& watch = *new MemoryWatch;  // sessions may outlive static objects
  return watch;
}

// A thread of the parent may hold any of the mutexes, to tell a job's clients for example.
MemoryWatch::MemoryWatch()
    : reset_([this] {
        renew_in_child(mutex_);
        for (const auto& watched : jobs_) renew_in_child(watched->mutex);
      }) {}

// What the thread has seen is what the caller has, not a new limit at some later time.
void MemoryWatch::start(Watched& watched) {
  watched.generation = fork_generation();
  watched.thread = std::thread([&watched, seen = watched.job->slot().memory_changes.load()] { listen(watched, seen); });
}

void MemoryWatch::listen(Watched& watched, uint32_t seen) {
  JobSlot& slot = watched.job->slot();
  while (!watched.stop) {
    futex_wait_shared(slot.memory_changes, seen, kPatienceNs);
    const uint32_t now = slot.memory_changes.load();
    if (now == seen) continue;
    seen = now;
    std::lock_guard lock(watched.mutex);
    for (Client* client : watched.clients) client->limit_changed(/*may_wait=*/true);
  }
}

// The client may have read a limit that has changed since: it is told once in any case.
void MemoryWatch::add(Client& client, JobState& job) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& one) { return one->job == &job; });
  if (found == jobs_.end()) {
    std::list<std::unique_ptr<Watched>> made;
    found = made.insert(made.end(), std::make_unique<Watched>());
    (*found)->job = &job;
    start(**found);
    std::lock_guard whole(lists_mutex_);
    jobs_.splice(jobs_.end(), made);
  } else if ((*found)->generation != fork_generation()) {
    renew_in_child((*found)->thread);
    start(**found);
  }
  {
    std::lock_guard clients_lock((*found)->mutex);
    std::lock_guard whole(lists_mutex_);
    (*found)->clients.push_back(&client);
  }
  announce(job.slot());
}

// Whoever holds one of the mutexes tells the clients itself, or the job's thread does.
template <typename Visit>
void MemoryWatch::visit_clients(int slot, Visit&& visit) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (const auto& watched : jobs_) {
    if (watched->generation != fork_generation() || watched->job->index() != slot) continue;
    std::unique_lock clients_lock(watched->mutex, std::try_to_lock);
    if (!clients_lock) return;
    for (Client* client : watched->clients) visit(*client);
  }
}

void MemoryWatch::tell(int slot) {
  visit_clients(slot, [](Client& client) { client.limit_changed(/*may_wait=*/false); });
}

void MemoryWatch::ask_others(const Client& asking, JobState& job) {
  visit_clients(job.index(), [&](Client& client) {
    if (&client != &asking) client.limit_changed(/*may_wait=*/false);
  });
}

void MemoryWatch::remove(Client& client) {
  std::lock_guard lock(mutex_);
  for (auto one = jobs_.begin(); one != jobs_.end(); ++one) {
    Watched& watched = **one;
    {
      std::lock_guard clients_lock(watched.mutex);
      auto found = std::find(watched.clients.begin(), watched.clients.end(), &client);
      if (found == watched.clients.end()) continue;
      std::lock_guard whole(lists_mutex_);
      watched.clients.erase(found);
      if (!watched.clients.empty()) return;
    }
    watched.stop = true;
    if (watched.generation != fork_generation()) {
      (void)one->release();  // its thread is the parent's: it can be neither joined nor destroyed
    } else {
      announce(watched.job->slot());
      watched.thread.join();
    }
    std::lock_guard whole(lists_mutex_);
    jobs_.erase(one);
    return;
  }
}

}  // namespace treadle::sharing
