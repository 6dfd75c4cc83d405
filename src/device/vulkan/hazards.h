// Tells before which commands of a stream a barrier is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/devices/device.h"

namespace treadle::vulkan {

/// Stores which memory a stream's commands since its last barrier read and write. The next command needs a barrier before it if it reads
/// memory that one of these commands writes, or writes memory that one of them reads or writes. Without a barrier, the device may execute
/// it at the same time as these commands.
class Hazards {
 public:
  bool needs_barrier(std::span<const MemoryUse> uses) const {
    return is_unknown_ || uses_.size() > kMost || std::any_of(uses.begin(), uses.end(), [&](const MemoryUse& use) {
             return std::any_of(uses_.begin(), uses_.end(), [&](const MemoryUse& earlier) { return conflict(use, earlier); });
           });
  }
  /// Returns true if a command about which nothing is known needs a barrier.
  bool has_any() const { return is_unknown_ || !uses_.empty(); }
  void add(std::span<const MemoryUse> uses) {
    for (const MemoryUse& use : uses)
      if (use.size_bytes > 0) uses_.push_back(use);
  }
  /// Notes a command that may have accessed any memory.
  void add_unknown() { is_unknown_ = true; }
  /// Forgets all commands, because there is a barrier after them.
  void clear() {
    uses_.clear();
    is_unknown_ = false;
  }

 private:
  static constexpr size_t kMost = 128;  // if more uses than this are stored, a barrier costs less than looking for a conflict

  static bool conflict(const MemoryUse& a, const MemoryUse& b) {
    if (a.access == Access::read && b.access == Access::read) return false;
    const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
    return a.size_bytes > 0 && b.size_bytes > 0 && a_begin < b_begin + b.size_bytes && b_begin < a_begin + a.size_bytes;
  }

  std::vector<MemoryUse> uses_;
  bool is_unknown_ = false;
};

}  // namespace treadle::vulkan
