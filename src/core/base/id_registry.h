// Objects of this process that nodes find by a number in one of their attributes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string_view>

#include "treadle/error.h"

namespace treadle {

template <typename T>
class IdRegistry {
 public:
  /// The registry of this type. Never destroyed, since trainers may outlive static objects.
  static IdRegistry& instance() {
    static auto* made = new IdRegistry();
    return *made;
  }

  /// Registers an object under a random number. A hostile model may contain any node, but cannot guess the number of a trainer's object.
  int64_t add(T* object) {
    std::random_device random;
    std::lock_guard lock(mutex_);
    while (true) {
      const int64_t id = static_cast<int64_t>((static_cast<uint64_t>(random()) << 31) ^ random()) & std::numeric_limits<int64_t>::max();
      if (by_id_.emplace(id, object).second) return id;
    }
  }
  void remove(int64_t id) {
    std::lock_guard lock(mutex_);
    by_id_.erase(id);
  }
  /// Returns a registered object. @param what  noun for the error, such as "exchange". @throws Error(invalid_argument) if it was destroyed
  T& find(int64_t id, std::string_view what) {
    std::lock_guard lock(mutex_);
    auto found = by_id_.find(id);
    if (found == by_id_.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("there is no {} {} in this process: only a trainer makes such a node", what, id));
    return *found->second;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, T*> by_id_;
};

}  // namespace treadle
