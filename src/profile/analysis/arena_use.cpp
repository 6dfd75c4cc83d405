#include "profile/analysis/arena_use.h"

#include <algorithm>
#include <numeric>

namespace treadle::profile {

ArenaUse::ArenaUse(const Profile& profile, const ProfileTrace& trace) : profile_(profile), trace_(trace) {
  if (profile.buffers.empty() || profile.steps.empty()) return;
  step_of_.assign(profile.nodes.size(), -1);
  for (size_t step = 0; step < profile.steps.size(); ++step)
    step_of_[static_cast<size_t>(profile.steps[step])] = static_cast<int32_t>(step);
  alive_.assign(profile.steps.size(), {});
  for (const ProfiledBuffer& buffer : profile.buffers)
    for (auto step = static_cast<size_t>(std::max(buffer.first, 0)); step < alive_.size() && static_cast<int64_t>(step) <= buffer.last;
         ++step)
      alive_[step][static_cast<size_t>(buffer.memory_class)] += static_cast<int64_t>(buffer.size_bytes);
  for (const Recording::Thread& thread : trace.recording.threads)
    for (const Record& record : thread.records) {
      if (record.kind == RecordKind::node && trace.node_of.contains(record.name)) moments_.push_back({record.start, &record});
      if (record.kind == RecordKind::run && record.name == trace.run) moments_.push_back({record.end, &record});
    }
  std::stable_sort(moments_.begin(), moments_.end(), [](const Moment& a, const Moment& b) { return a.ticks < b.ticks; });
}

void ArenaUse::add(int32_t step, int64_t sign) {
  if (step < 0) return;
  const SignedClassBytes& alive = alive_[static_cast<size_t>(step)];
  for (size_t c = 0; c < kNumMemoryClasses; ++c) bytes_[c] += sign * alive[c];
  total_bytes_ += sign * std::accumulate(alive.begin(), alive.end(), int64_t{0});
}

void ArenaUse::take(const Record& record) {
  if (record.kind == RecordKind::run) {
    const auto run = steps_.find(record.run);
    if (run == steps_.end()) return;
    add(run->second, -1);
    steps_.erase(run);
    return;
  }
  const int32_t step = step_of_[static_cast<size_t>(trace_.node_of.at(record.name))];
  if (step < 0) return;
  int32_t& last = steps_.try_emplace(record.run, -1).first->second;
  if (step <= last) return;  // concurrent nodes may begin in another order than planned
  add(last, -1);
  add(step, 1);
  last = step;
}

std::vector<MemoryHolding> ArenaUse::holdings_at(int32_t step) const {
  std::vector<MemoryHolding> holdings;
  for (const ProfiledBuffer& buffer : profile_.buffers)
    if (buffer.first <= step && step <= buffer.last) holdings.push_back({buffer.name, buffer.memory_class, buffer.size_bytes});
  return holdings;
}

}  // namespace treadle::profile
