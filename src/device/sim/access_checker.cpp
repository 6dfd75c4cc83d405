#include "device/sim/access_checker.h"

#include <algorithm>
#include <utility>

#include "treadle/error.h"

namespace treadle {
namespace {

void merge(AccessChecker::Clock& into, const AccessChecker::Clock& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

AccessChecker::AccessChecker() { add_timeline("the host"); }

int AccessChecker::add_timeline(std::string name) {
  std::lock_guard lock(mutex_);
  std::string label = names_.empty() ? std::move(name) : "stream \"" + name + "\"";
  if (!free_.empty()) {
    const int id = free_.back();
    free_.pop_back();
    names_[static_cast<size_t>(id)] = std::move(label);
    return id;
  }
  const size_t id = names_.size();
  names_.reserve(id + 1);                     // allocations first: if one fails, nothing has changed
  free_.reserve(id + 1);                      // so that remove_timeline() cannot fail
  if (id > 0) clocks_[kHost].resize(id + 1);  // the host's clock must be at least as long as others
  clocks_.emplace_back(id + 1);
  names_.push_back(std::move(label));
  return static_cast<int>(id);
}

void AccessChecker::remove_timeline(int timeline) {
  std::lock_guard lock(mutex_);
  merge(clocks_[kHost], clocks_[static_cast<size_t>(timeline)]);
  free_.push_back(timeline);
}

void AccessChecker::issue(int timeline) {
  std::lock_guard lock(mutex_);
  auto index = static_cast<size_t>(timeline);
  merge(clocks_[index], clocks_[kHost]);
  ++clocks_[index][index];
}

AccessChecker::Clock AccessChecker::now(int timeline) const {
  std::lock_guard lock(mutex_);
  return clocks_[static_cast<size_t>(timeline)];
}

void AccessChecker::join(int timeline, const Clock& clock) {
  std::lock_guard lock(mutex_);
  merge(clocks_[static_cast<size_t>(timeline)], clock);
}

void AccessChecker::join_host(int timeline) noexcept {
  std::lock_guard lock(mutex_);
  Clock &host = clocks_[kHost], &other = clocks_[static_cast<size_t>(timeline)];
  ++other[static_cast<size_t>(timeline)];
  for (size_t i = 0; i < other.size(); ++i) host[i] = std::max(host[i], other[i]);
}

void AccessChecker::add_memory(const void* data, size_t size_bytes) {
  std::lock_guard lock(mutex_);
  auto begin = reinterpret_cast<uintptr_t>(data);
  Block block{size_bytes, {}};
  block.segments[begin].end = begin + size_bytes;
  blocks_[begin] = std::move(block);
}

bool AccessChecker::remove_memory(const void* data, bool check) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(reinterpret_cast<uintptr_t>(data));
  if (found == blocks_.end()) return true;
  std::string race;
  for (const auto& [begin, segment] : found->second.segments)
    if (check && race.empty()) race = find_race(segment, kHost, Access::write);
  if (!race.empty() && pending_.empty()) pending_ = "device memory was freed on the host while it may still be in use: " + race;
  blocks_.erase(found);
  return race.empty();
}

bool AccessChecker::has_memory(const void* data) const {
  std::lock_guard lock(mutex_);
  auto address = reinterpret_cast<uintptr_t>(data);
  auto after = blocks_.upper_bound(address);
  return after != blocks_.begin() && address < std::prev(after)->first + std::prev(after)->second.size;
}

bool AccessChecker::before(const Record& record, int timeline) const {
  if (record.timeline < 0 || record.timeline == timeline) return true;
  // Work also comes after everything that the host has seen when it issues the work, which it is doing now.
  auto seen = [&](const Clock& clock) {
    auto index = static_cast<size_t>(record.timeline);
    return index < clock.size() && clock[index] >= record.tick;
  };
  return seen(clocks_[static_cast<size_t>(timeline)]) || seen(clocks_[kHost]);
}

std::string AccessChecker::describe(const Record& record, const char* verb) const {
  return std::string(verb) + " by \"" + record.name + "\" on " + names_[static_cast<size_t>(record.timeline)];
}

std::string AccessChecker::find_race(const Segment& segment, int timeline, Access access) const {
  if (!before(segment.write, timeline)) return describe(segment.write, "the write");
  if (access == Access::write)
    for (const Record& read : segment.reads)
      if (!before(read, timeline)) return describe(read, "the read");
  return {};
}

std::map<uintptr_t, AccessChecker::Block>::iterator AccessChecker::block_of(uintptr_t address, size_t size_bytes) {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return blocks_.end();
  auto found = std::prev(after);
  uintptr_t offset = address - found->first;
  return offset <= found->second.size && size_bytes <= found->second.size - offset ? found : blocks_.end();
}

void AccessChecker::split(Block& block, uintptr_t address) {
  auto after = block.segments.upper_bound(address);
  if (after == block.segments.begin()) return;
  auto segment = std::prev(after);
  if (segment->first == address || segment->second.end <= address) return;
  Segment upper = segment->second;
  segment->second.end = address;
  block.segments.emplace(address, std::move(upper));
}

void AccessChecker::check(int timeline, const void* data, size_t size_bytes, Access access, std::string_view name) {
  std::lock_guard lock(mutex_);
  throw_pending();
  if (size_bytes == 0) return;
  auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size_bytes;
  const char* verb = access == Access::write ? "the write" : "the read";
  Record record{timeline, clocks_[static_cast<size_t>(timeline)][static_cast<size_t>(timeline)] + 1, std::string(name)};
  auto found = block_of(begin, size_bytes);
  if (found == blocks_.end())
    throw Error(ErrorCode::internal, describe(record, verb) + " touches " + std::to_string(size_bytes) +
                                         " bytes that the device has not allocated, or has freed");
  Block& block = found->second;
  split(block, begin);
  split(block, end);
  for (auto at = block.segments.find(begin); at != block.segments.end() && at->first < end; ++at) {
    Segment& segment = at->second;
    std::string other = find_race(segment, timeline, access);
    if (!other.empty())
      throw Error(ErrorCode::internal, "race on bytes " + std::to_string(at->first - found->first) + " to " +
                                           std::to_string(segment.end - found->first) + " of a device block of " +
                                           std::to_string(block.size) + ": " + describe(record, verb) + " is not ordered after " + other);
    if (access == Access::write) {
      segment.write = record;
      segment.reads.clear();
    } else {
      auto same = std::find_if(segment.reads.begin(), segment.reads.end(), [&](const Record& read) { return read.timeline == timeline; });
      if (same == segment.reads.end())
        segment.reads.push_back(record);
      else
        *same = record;
    }
  }
  if (timeline == kHost) ++clocks_[kHost][kHost];  // an access by the host happens immediately
}

void AccessChecker::report_pending() {
  std::lock_guard lock(mutex_);
  throw_pending();
}

void AccessChecker::throw_pending() {
  if (!pending_.empty()) throw Error(ErrorCode::internal, std::exchange(pending_, {}));
}

}  // namespace treadle
