#include "profile/memory_timeline.h"

#include <algorithm>

namespace treadle::profile {

MemoryTimeline memory_timeline(const Profile& profile) {
  MemoryTimeline timeline;
  if (profile.buffers.empty() || profile.steps.empty()) return timeline;
  const size_t num_steps = profile.steps.size();
  timeline.value_bytes.assign(num_steps, 0);
  timeline.scratch_bytes.assign(num_steps, 0);
  for (const ProfiledBuffer& buffer : profile.buffers) {
    auto& bytes = buffer.memory_class == MemoryClass::scratch ? timeline.scratch_bytes : timeline.value_bytes;
    for (size_t step = static_cast<size_t>(std::max(buffer.first, 0)); step < num_steps && static_cast<int64_t>(step) <= buffer.last;
         ++step)
      bytes[step] += buffer.size_bytes;
  }
  for (size_t step = 0; step < num_steps; ++step) {
    const size_t bytes = timeline.value_bytes[step] + timeline.scratch_bytes[step];
    if (bytes > timeline.peak_bytes) timeline.peak_bytes = bytes, timeline.peak_step = step;
  }
  const auto peak = static_cast<int64_t>(timeline.peak_step);
  for (const ProfiledBuffer& buffer : profile.buffers)
    if (buffer.first <= peak && peak <= buffer.last) timeline.at_peak.push_back(&buffer);
  std::stable_sort(timeline.at_peak.begin(), timeline.at_peak.end(),
                   [](const ProfiledBuffer* a, const ProfiledBuffer* b) { return a->size_bytes > b->size_bytes; });
  return timeline;
}

}  // namespace treadle::profile
