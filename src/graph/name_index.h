// A hash index of the names in a pool of nodes or values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle {

/// Maps a name to its `place`: the position of its node or value in the pool. Stores only hashes and places (open addressing, linear
/// probing), not the names. So it fits the CPU cache for tens of thousands of nodes; otherwise renaming would take as long as computing.
class NameIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Returns the hash of a name. Callers compute it once, because they look a name up in several indices.
  static size_t hash(std::string_view name) noexcept { return std::hash<std::string_view>{}(name); }

  /// Returns the place (position in the pool) of the node or value with this name, or kNone. `name_of(place)` must return its name.
  template <typename NameOf>
  uint32_t find(size_t hash, std::string_view name, const NameOf& name_of) const {
    if (slots_.empty()) return kNone;
    const uint32_t shortened = shorten(hash);
    for (size_t i = shortened & mask(); slots_[i].place != kNone; i = (i + 1) & mask())
      if (slots_[i].hash == shortened && name_of(slots_[i].place) == name) return slots_[i].place;
    return kNone;
  }

  /// Adds the name of the node or value at `place` in the pool. @pre neither the name nor the place is in the index
  void insert(size_t hash, uint32_t place) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    put({shorten(hash), place});
    ++size_;
  }

  /// Removes a place that was inserted with a name of this hash. Does nothing if the index does not contain it.
  void erase(size_t hash, uint32_t place) {
    if (slots_.empty()) return;
    size_t hole = shorten(hash) & mask();
    while (slots_[hole].place != place) {
      if (slots_[hole].place == kNone) return;
      hole = (hole + 1) & mask();
    }
    // Moves later entries of the probe sequence into the hole as far as their hashes allow, so that no search ends at the hole.
    for (size_t i = (hole + 1) & mask(); slots_[i].place != kNone; i = (i + 1) & mask()) {
      const size_t distance_from_home = (i - slots_[i].hash) & mask(), distance_from_hole = (i - hole) & mask();
      if (distance_from_home < distance_from_hole) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole].place = kNone;
    --size_;
  }

  size_t size() const noexcept { return size_; }

 private:
  struct Slot {
    uint32_t hash = 0, place = kNone;
  };

  static uint32_t shorten(size_t hash) noexcept { return static_cast<uint32_t>(hash ^ (uint64_t{hash} >> 32U)); }
  size_t mask() const noexcept { return slots_.size() - 1; }

  void put(Slot slot) {
    size_t i = slot.hash & mask();
    while (slots_[i].place != kNone) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 16 : 2 * slots_.size()));
    for (const Slot& slot : old)
      if (slot.place != kNone) put(slot);
  }

  std::vector<Slot> slots_;  // size is a power of two; at most half are used
  size_t size_ = 0;
};

}  // namespace treadle
