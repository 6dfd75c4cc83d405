#include "sharing/memory_watch.h"

#include <algorithm>
#include <memory>

#include "core/futex.h"

namespace treadle::sharing {
namespace {

constexpr int64_t kPatienceNs = 1'000'000'000;

}  // namespace

MemoryWatch& MemoryWatch::get() {
  static MemoryWatch& watch = *new MemoryWatch;  // sessions may outlive static objects
  return watch;
}

void MemoryWatch::listen(Watched& watched) {
  JobSlot& slot = watched.job->slot();
  uint32_t seen = slot.memory_changes.load();
  while (!watched.stop) {
    futex_wait_shared(slot.memory_changes, seen, kPatienceNs);
    const uint32_t now = slot.memory_changes.load();
    if (now == seen) continue;
    seen = now;
    std::lock_guard lock(watched.mutex);
    for (Client* client : watched.clients) client->limit_changed();
  }
}

void MemoryWatch::add(Client& client, JobState& job) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& one) { return one->job == &job; });
  if (found != jobs_.end()) {
    std::lock_guard clients_lock((*found)->mutex);
    (*found)->clients.push_back(&client);
    return;
  }
  auto watched = std::make_unique<Watched>();
  watched->job = &job;
  watched->clients.push_back(&client);
  watched->generation = fork_generation();
  watched->thread = std::thread([one = watched.get()] { listen(*one); });
  jobs_.push_back(std::move(watched));
}

void MemoryWatch::remove(Client& client) {
  std::lock_guard lock(mutex_);
  for (auto one = jobs_.begin(); one != jobs_.end(); ++one) {
    Watched& watched = **one;
    {
      std::lock_guard clients_lock(watched.mutex);
      auto found = std::find(watched.clients.begin(), watched.clients.end(), &client);
      if (found == watched.clients.end()) continue;
      watched.clients.erase(found);
      if (!watched.clients.empty()) return;
    }
    watched.stop = true;
    if (watched.generation != fork_generation()) {
      (void)one->release();  // its thread is the parent's: it can be neither joined nor destroyed
    } else {
      JobSlot& slot = watched.job->slot();
      slot.memory_changes.fetch_add(1);
      futex_wake_shared(slot.memory_changes);
      watched.thread.join();
    }
    jobs_.erase(one);
    return;
  }
}

}  // namespace treadle::sharing
