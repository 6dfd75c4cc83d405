// Determines which commands of a stream need a barrier before them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/devices/device.h"

namespace treadle::vulkan {

/// Stores which memory is read and written by the commands since a stream's last barrier. Without a barrier, the device may execute the
/// next command at the same time as these. So it needs a barrier if it reads memory that one of them writes, or writes memory that one of
/// them reads or writes.
class Hazards {
 public:
  bool needs_barrier(std::span<const MemoryUse> uses) const {
    return is_unknown_ || uses_.size() > kMost || std::any_of(uses.begin(), uses.end(), [&](const MemoryUse& use) {
             return std::any_of(uses_.begin(), uses_.end(), [&](const MemoryUse& earlier) { return conflict(use, earlier); });
           });
  }
  /// Returns true if a command whose memory use is unknown needs a barrier before it.
  bool has_any() const { return is_unknown_ || !uses_.empty(); }
  void add(std::span<const MemoryUse> uses) {
    for (const MemoryUse& use : uses)
      if (use.size_bytes > 0) uses_.push_back(use);
  }
  /// Adds a command that may access any memory.
  void add_unknown() { is_unknown_ = true; }
  /// Removes all commands. Must be called when a barrier follows them.
  void clear() {
    uses_.clear();
    is_unknown_ = false;
  }

 private:
  static constexpr size_t kMost = 128;  // with more uses than this, a barrier costs less than searching for conflicts

  static bool conflict(const MemoryUse& a, const MemoryUse& b) {
    if (a.access == Access::read && b.access == Access::read) return false;
    const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
    return a.size_bytes > 0 && b.size_bytes > 0 && a_begin < b_begin + b.size_bytes && b_begin < a_begin + a.size_bytes;
  }

  std::vector<MemoryUse> uses_;
  bool is_unknown_ = false;
};

}  // namespace treadle::vulkan
