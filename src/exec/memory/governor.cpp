#include "exec/memory/governor.h"

namespace treadle::exec {

bool counts_for(const MemoryAccount& account, const MemoryAccount& full) {
  const MemoryAccount* at = &account;
  while (at && at != &full) at = at->parent().get();
  return at != nullptr;
}

const MemoryAccount* account_without_room(const MemoryAccount& account, size_t size_bytes) {
  const MemoryAccount* full = nullptr;
  for (const MemoryAccount* at = &account; at; at = at->parent().get())
    if (const size_t limit = at->limit_bytes(), bytes = at->bytes(); limit != 0 && (bytes > limit || size_bytes > limit - bytes)) full = at;
  return full;
}

void Governor::add(MemoryKeeper& holder, bool frames) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(holders_mutex_);
  holders_.insert(frames ? holders_.begin() : holders_.end(), &holder);
}

void Governor::remove(MemoryKeeper& holder) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(holders_mutex_);
  holders_.remove(&holder);
}

bool Governor::make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking) {
  for (MemoryKeeper* holder : holders_)
    if (holder != asking && holder->give_way(full, enough)) return true;
  return false;
}

void Governor::set_limit(MemoryAccount& account, size_t limit_bytes) {
  if (limit_bytes == account.limit_bytes()) return;
  account.set_limit(limit_bytes);
  generation.fetch_add(1);
}

void Governor::keep_limit(const MemoryAccount& account) {
  const auto is_kept = [&] { return !account_without_room(account, 0); };
  if (!is_kept()) make_room(account, is_kept);
  left.notify_all();
}

Governor::Exclusive::Exclusive(Governor& governor, const void* owner, const sharing::Interruption& interruption)
    : governor_(governor), owner_(owner) {
  std::unique_lock lock(governor.mutex);
  if (governor.alone_.insert(owner).second) return;
  struct Waits {
    int& count;
    explicit Waits(int& of) : count(of) { ++count; }
    ~Waits() { --count; }
  } const waits(governor.waiting_exclusive);
  governor.wait(lock, interruption, [&] { return governor.alone_.insert(owner).second; });
}

Governor::Exclusive::~Exclusive() {
  std::lock_guard lock(governor_.mutex);
  governor_.alone_.erase(owner_);
  governor_.left.notify_all();
}

}  // namespace treadle::exec
