#include "core/trace/pool_states.h"

#include <array>
#include <exception>

namespace treadle {

std::string_view name_of(PoolState state) {
  static constexpr std::array<std::string_view, kNumPoolStates> kNames{"running", "no ready work", "barrier", "asleep"};
  return kNames[static_cast<size_t>(state) % kNames.size()];
}

void record_pool_state(PoolState state, uint64_t start, uint64_t end) noexcept {
  if (start == 0 || end == 0) return;
  try {
    static const std::array<uint32_t, kNumPoolStates> names = [] {
      std::array<uint32_t, kNumPoolStates> ids{};
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = Recorder::of_process().intern(name_of(static_cast<PoolState>(i)));
      return ids;
    }();
    Recorder::of_process().record(names[static_cast<size_t>(state)], RecordKind::pool, start, end);
  } catch (const std::exception&) {
    // If there is no memory for the names, states are not recorded.
  }
}

}  // namespace treadle
