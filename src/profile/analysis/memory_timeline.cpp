#include "profile/analysis/memory_timeline.h"

#include <algorithm>

namespace treadle::profile {

MemoryTimeline memory_timeline(const Profile& profile) {
  MemoryTimeline timeline;
  if (profile.buffers.empty() || profile.steps.empty()) return timeline;
  const size_t num_steps = profile.steps.size();
  for (MemoryClass always : {MemoryClass::activations, MemoryClass::scratch}) timeline.bytes[always].assign(num_steps, 0);
  std::vector<size_t> all(num_steps, 0);
  for (const ProfiledBuffer& buffer : profile.buffers) {
    std::vector<size_t>& bytes = timeline.bytes[buffer.memory_class];
    bytes.resize(num_steps, 0);
    for (size_t step = static_cast<size_t>(std::max(buffer.first, 0)); step < num_steps && static_cast<int64_t>(step) <= buffer.last;
         ++step)
      bytes[step] += buffer.size_bytes, all[step] += buffer.size_bytes;
  }
  for (size_t step = 0; step < num_steps; ++step)
    if (all[step] > timeline.peak_bytes) timeline.peak_bytes = all[step], timeline.peak_step = step;
  const auto peak = static_cast<int64_t>(timeline.peak_step);
  for (const ProfiledBuffer& buffer : profile.buffers)
    if (buffer.first <= peak && peak <= buffer.last) timeline.at_peak.push_back(&buffer);
  std::stable_sort(timeline.at_peak.begin(), timeline.at_peak.end(),
                   [](const ProfiledBuffer* a, const ProfiledBuffer* b) { return a->size_bytes > b->size_bytes; });
  return timeline;
}

}  // namespace treadle::profile
