#include "device/vulkan/movable_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::vulkan {
namespace {

constexpr uint64_t kFirst = MovableMemory::kFirst, kEnd = 2 * kFirst;
constexpr size_t kLargest = size_t{1} << 48;

bool is_movable(uint64_t address) { return address >= kFirst && address < kEnd; }

}  // namespace

uint64_t MovableMemory::allocate(size_t size_bytes) {
  connection_.check_process();
  std::lock_guard lock(mutex_);
  const uint64_t address = next_;
  if (size_bytes > kLargest || size_bytes > kEnd - address - Heap::kAlignment)
    throw OutOfMemory(fmt::format("cannot allocate {} bytes on {}", size_bytes, connection_.name()));
  next_ = address + (std::max<size_t>(size_bytes, 1) + Heap::kAlignment - 1) / Heap::kAlignment * Heap::kAlignment;
  return address;
}

void MovableMemory::free(uint64_t address, size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;  // in a forked child, the mutex may be locked forever
  std::lock_guard lock(mutex_);
  const auto first = parts_.lower_bound(address), last = parts_.lower_bound(address + std::max<size_t>(size_bytes, 1));
  for (auto at = first; at != last; ++at) release(at->second, /*device=*/true, /*host=*/true);
  parts_.erase(first, last);
}

void MovableMemory::release(Part& part, bool device, bool host) noexcept {
  if (device && part.device != 0) on_device_.free(std::exchange(part.device, 0), part.size_bytes);
  if (device) part.leaves_device = false;
  if (host && part.host != 0) on_host_.free(std::exchange(part.host, 0), part.size_bytes);
}

MovableMemory::Parts::iterator MovableMemory::containing(uint64_t address, size_t size_bytes) {
  const auto behind = parts_.upper_bound(address);
  if (behind == parts_.begin() || size_bytes == 0) return parts_.end();  // an empty value may have another part's address
  const auto at = std::prev(behind);
  const uint64_t offset = address - at->first;
  return offset < at->second.size_bytes && size_bytes <= at->second.size_bytes - offset ? at : parts_.end();
}

MovableMemory::Part& MovableMemory::part(uint64_t address, size_t size_bytes) {
  if (const auto known = containing(address, size_bytes); known != parts_.end()) return known->second;
  const auto behind = parts_.lower_bound(address);
  const bool overlaps = (behind != parts_.end() && behind->first - address < size_bytes) ||
                        (behind != parts_.begin() && address - std::prev(behind)->first < std::prev(behind)->second.size_bytes);
  if (overlaps || !is_movable(address))
    throw Error(ErrorCode::internal, fmt::format("{} bytes at {:#x} are not what moves on {}", size_bytes, address, connection_.name()));
  return parts_.emplace(address, Part{size_bytes}).first->second;
}

bool MovableMemory::reserve(uint64_t address, size_t size_bytes) {
  std::lock_guard lock(mutex_);
  Part& of = part(address, size_bytes);
  if (of.device != 0) return true;
  try {
    of.device = on_device_.allocate(of.size_bytes);
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

void MovableMemory::unreserve(uint64_t address, size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;
  std::lock_guard lock(mutex_);
  const auto at = containing(address, size_bytes);
  if (at == parts_.end()) return;
  release(at->second, /*device=*/true, /*host=*/false);
  if (at->second.host == 0) parts_.erase(at);
}

bool MovableMemory::reserve(size_t size_bytes) {
  const size_t room = on_device_.room_bytes();
  std::lock_guard lock(mutex_);
  if (counted_bytes_ > room || size_bytes > room - counted_bytes_) return false;
  counted_bytes_ += size_bytes;
  return true;
}

void MovableMemory::unreserve(size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;
  std::lock_guard lock(mutex_);
  counted_bytes_ -= size_bytes;
}

void MovableMemory::discard(uint64_t address, size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;
  std::lock_guard lock(mutex_);
  const auto at = containing(address, size_bytes);
  if (at == parts_.end()) return;
  release(at->second, /*device=*/false, /*host=*/true);
  if (at->second.device == 0) parts_.erase(at);
}

void MovableMemory::forget(uint64_t address, size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;
  std::lock_guard lock(mutex_);
  const auto at = containing(address, size_bytes);
  if (at == parts_.end()) return;
  release(at->second, /*device=*/true, /*host=*/true);
  parts_.erase(at);
}

void MovableMemory::keep_on_host(uint64_t address, size_t size_bytes) {
  std::lock_guard lock(mutex_);
  part(address, size_bytes).keeps_host = true;
}

uint64_t MovableMemory::reach(uint64_t address, size_t size_bytes) {
  if (!is_movable(address)) return address;
  std::lock_guard lock(mutex_);
  Part& of = part(address, size_bytes);
  if (!of.is_on_device() && of.host == 0) of.host = on_host_.allocate(of.size_bytes);
  return present(address, size_bytes);
}

uint64_t MovableMemory::find(uint64_t address, size_t size_bytes) {
  if (!is_movable(address)) return address;
  std::lock_guard lock(mutex_);
  return present(address, size_bytes);
}

uint64_t MovableMemory::present(uint64_t address, size_t size_bytes) {
  const auto at = containing(address, size_bytes);
  if (at == parts_.end() || (!at->second.is_on_device() && at->second.host == 0))
    throw Error(ErrorCode::internal, fmt::format("{} bytes at {:#x} are in no memory of {}", size_bytes, address, connection_.name()));
  return (at->second.is_on_device() ? at->second.device : at->second.host) + (address - at->first);
}

MovableMemory::Copy MovableMemory::move_to_device(uint64_t address, size_t size_bytes) {
  std::lock_guard lock(mutex_);
  Part& of = part(address, size_bytes);
  if (of.device == 0)
    throw Error(ErrorCode::internal, fmt::format("{} bytes move to {}, which has no memory for them", size_bytes, connection_.name()));
  if (of.host == 0) return {};
  return {.to = of.device, .from = of.host, .size_bytes = of.size_bytes, .free_on_host = of.keeps_host ? 0 : std::exchange(of.host, 0)};
}

MovableMemory::Copy MovableMemory::move_to_host(uint64_t address, size_t size_bytes, bool unchanged) {
  std::lock_guard lock(mutex_);
  Part& of = part(address, size_bytes);
  if (of.device == 0) return {};
  const bool is_there = of.host != 0;
  if (!is_there) of.host = on_host_.allocate(of.size_bytes);
  of.leaves_device = true;
  if (unchanged && is_there) return {};
  return {.to = of.host, .from = of.device, .size_bytes = of.size_bytes};
}

}  // namespace treadle::vulkan
