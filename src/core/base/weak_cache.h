// Lets several owners in a process share a value that each would otherwise make from the same contents.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"

namespace treadle {

/// Maps keys to values. A value is destroyed with its last owner; the cache itself keeps no value alive. Thread-safe, and consistent in a
/// forked child.
template <typename Key, typename Value, typename Hash>
class WeakCache {
 public:
  /// Returns the key's value; null if no value exists or all its owners have released it.
  std::shared_ptr<Value> find(const Key& key) const {
    std::lock_guard lock(mutex_);
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : found->second.lock();
  }
  /// Returns the value to use: an existing one, if another thread was faster, otherwise the given one.
  std::shared_ptr<Value> add(const Key& key, std::shared_ptr<Value> value) {
    std::lock_guard lock(mutex_);
    if (values_.size() >= sweep_at_) {
      std::erase_if(values_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = 2 * values_.size() + kFewest;
    }
    std::weak_ptr<Value>& there = values_[key];
    if (auto held = there.lock()) return held;
    there = value;
    return value;
  }
  std::vector<std::shared_ptr<Value>> all() const {
    std::vector<std::shared_ptr<Value>> held;
    std::lock_guard lock(mutex_);
    for (const auto& [key, value] : values_)
      if (auto one = value.lock()) held.push_back(std::move(one));
    return held;
  }

 private:
  static constexpr size_t kFewest = 64;  // expired entries are removed only beyond this number; each costs a hundred bytes
  mutable ForkMutex mutex_;
  std::unordered_map<Key, std::weak_ptr<Value>, Hash> values_;
  size_t sweep_at_ = kFewest;
};

}  // namespace treadle
