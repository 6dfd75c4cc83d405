#include "exec/memory/governor.h"

#include <fmt/format.h>

#include "core/base/logging.h"

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

void Governor::add(MemoryKeeper& keeper, bool frames) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(keepers_mutex_);
  keepers_.insert(frames ? keepers_.begin() : keepers_.end(), &keeper);
}

void Governor::remove(MemoryKeeper& keeper) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(keepers_mutex_);
  keepers_.remove(&keeper);
}

bool Governor::make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking) {
  for (MemoryKeeper* keeper : keepers_)
    if (keeper != asking && keeper->give_way(full, enough)) return true;
  return false;
}

void Governor::set_limit(MemoryAccount& account, size_t limit_bytes) {
  if (limit_bytes == account.limit_bytes()) return;
  account.set_limit(limit_bytes);
  generation_.fetch_add(1);
  if (log_enabled(LogLevel::info, LogCategory::memory))
    log_event(LogLevel::info, LogCategory::memory, {{"account", account.name()}, {"limit_bytes", static_cast<int64_t>(limit_bytes)}},
              fmt::format("the memory limit of {} becomes {} bytes; {} are in use", account.name(), limit_bytes, account.bytes()));
}

void Governor::keep_limit(const MemoryAccount& account) {
  const auto is_kept = [&] { return !account_without_room(account, 0); };
  if (!is_kept()) make_room(account, is_kept);
  notify();
}

Governor::Exclusive::Exclusive(Governor& governor, const void* owner, const sharing::Interruption& interruption)
    : governor_(governor), owner_(owner) {
  std::unique_lock lock(governor.mutex);
  governor.wait(lock, interruption, [&] { return governor.exclusive_owners_.insert(owner).second; });
}

Governor::Exclusive::~Exclusive() {
  std::lock_guard lock(governor_.mutex);
  governor_.exclusive_owners_.erase(owner_);
  governor_.notify();
}

}  // namespace treadle::exec
