#include "memory/relocate.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "treadle/tensor.h"

namespace treadle::memory {
namespace {

class Relocating {
 public:
  Relocating(std::byte* block, size_t size_bytes, std::span<const Relocation> moves, const Aside& aside)
      : block_(block), size_bytes_(size_bytes), aside_(aside) {
    for (size_t i = 0; i < moves.size(); ++i) {
      const Relocation& move = moves[i];
      if (move.size_bytes == 0) continue;
      taken_.emplace_back(move.to, move.to + move.size_bytes);
      taken_.emplace_back(move.from, move.from + move.size_bytes);
      if (move.from != move.to) waiting_.push_back({i, move});
    }
  }

  void run() {
    while (!waiting_.empty()) {
      const auto free = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& value) { return may_come(value); });
      if (free == waiting_.end())
        step_out_of_the_way();
      else
        come(free);
    }
  }

 private:
  struct Waiting {
    size_t index;
    Relocation move;
    bool aside = false;
  };

  // True if the value's target does not overlap the source of another value that has yet to move.
  bool may_come(const Waiting& value) const {
    return std::none_of(waiting_.begin(), waiting_.end(), [&](const Waiting& other) {
      return &other != &value && !other.aside && value.move.to < other.move.from + other.move.size_bytes &&
             other.move.from < value.move.to + value.move.size_bytes;
    });
  }

  void come(std::vector<Waiting>::iterator value) {
    const Relocation& move = value->move;
    if (value->aside)
      aside_.take(value->index, move.to);
    else
      std::memmove(block_ + move.to, block_ + move.from, move.size_bytes);
    waiting_.erase(value);
  }

  // Moves the smallest waiting value to unused memory, where it does not block any other value. So each value is moved away at most once.
  void step_out_of_the_way() {
    const auto size = [](const Waiting& value) { return value.aside ? SIZE_MAX : value.move.size_bytes; };
    Waiting& smallest =
        *std::min_element(waiting_.begin(), waiting_.end(), [&](const Waiting& a, const Waiting& b) { return size(a) < size(b); });
    Relocation& move = smallest.move;
    if (const auto gap = find_gap(move.size_bytes)) {
      std::memcpy(block_ + *gap, block_ + move.from, move.size_bytes);
      move.from = *gap;
      taken_.emplace_back(*gap, *gap + move.size_bytes);
    } else {
      aside_.put(smallest.index, move.from);
      smallest.aside = true;
    }
  }

  std::optional<size_t> find_gap(size_t size) {
    std::sort(taken_.begin(), taken_.end());
    size_t begin = 0;
    for (const auto& [first, end] : taken_) {
      if (begin + size <= first) return begin;
      begin = std::max(begin, align_up(end, Storage::kAlignment));
    }
    return begin + size <= size_bytes_ ? std::optional(begin) : std::nullopt;
  }

  std::byte* const block_;
  const size_t size_bytes_;
  const Aside& aside_;
  std::vector<std::pair<size_t, size_t>> taken_;  // begin and end of each source and target
  std::vector<Waiting> waiting_;
};

}  // namespace

void relocate(std::byte* block, size_t size_bytes, std::span<const Relocation> moves, const Aside& aside) {
  Relocating(block, size_bytes, moves, aside).run();
}

}  // namespace treadle::memory
