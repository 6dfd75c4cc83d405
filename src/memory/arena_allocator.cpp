// Divides large blocks by best fit. Adjacent free regions are merged; blocks without a used region are returned to the upstream.
#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/checked.h"
#include "memory/allocators.h"
#include "treadle/tensor.h"

namespace treadle::memory {
namespace {

class ArenaAllocator final : public Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<Allocator> upstream) : upstream_(std::move(upstream)) {}
  ~ArenaAllocator() override {
    for (const auto& [data, region] : regions_)
      if (region.first_of_block) upstream_->free(data, region.block_bytes, MemoryClass::other);
  }
  ArenaAllocator(const ArenaAllocator&) = delete;
  ArenaAllocator& operator=(const ArenaAllocator&) = delete;

  std::string_view name() const noexcept override { return "arena"; }

  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    const size_t size = align_up(size_bytes, Storage::kAlignment);
    if (size < size_bytes) return nullptr;
    std::lock_guard lock(mutex_);
    auto found = free_.lower_bound({size, nullptr});
    if (found == free_.end()) {
      if (!add_block(size)) return nullptr;
      found = free_.lower_bound({size, nullptr});
    }
    auto region = regions_.find(found->second);
    if (region->second.size > size) split(region, size);
    region->second.node = free_.extract(found);
    region->second.memory_class = memory_class;
    used_bytes_ += size;
    return region->first;
  }

  void free(void* data, size_t /*size_bytes*/, MemoryClass /*memory_class*/) noexcept override {
    std::lock_guard lock(mutex_);
    auto region = regions_.find(static_cast<std::byte*>(data));
    used_bytes_ -= region->second.size;
    if (auto next = std::next(region); next != regions_.end() && !next->second.first_of_block && !next->second.used()) {
      free_.erase({next->second.size, next->first});
      region->second.size += next->second.size;
      regions_.erase(next);
    }
    FreeSet::node_type node = std::move(region->second.node);
    if (!region->second.first_of_block) {
      auto previous = std::prev(region);
      if (!previous->second.used()) {
        free_.erase({previous->second.size, previous->first});
        previous->second.size += region->second.size;
        regions_.erase(region);
        region = previous;
      }
    }
    node.value() = {region->second.size, region->first};
    free_.insert(std::move(node));
    // While some blocks are in use, keeps up to kKeepBytes of free memory, since the next run probably needs it.
    if (used_bytes_ == 0 || free_bytes() > kKeepBytes) release_idle_blocks(used_bytes_ == 0 ? 0 : kKeepBytes);
  }

  size_t trim() noexcept override {
    std::lock_guard lock(mutex_);
    return release_idle_blocks(0) + upstream_->trim();
  }

  void visit_regions(const std::function<void(const MemoryRegion&)>& visit) const override {
    std::lock_guard lock(mutex_);
    for (const auto& [data, region] : regions_) visit({data, region.size, region.used(), region.memory_class});
  }

 private:
  static constexpr size_t kFirstBlockBytes = size_t{1} << 20, kLargestBlockBytes = size_t{64} << 20, kKeepBytes = size_t{64} << 20;
  using FreeSet = std::set<std::pair<size_t, std::byte*>>;  // sorted by size, so the first region that is large enough is the best fit
  struct Region {
    size_t size = 0;
    bool first_of_block = false;
    size_t block_bytes = 0;  // size of the block, for its first region
    MemoryClass memory_class = MemoryClass::other;
    FreeSet::node_type node;  // a used region's entry for free_, kept so that freeing the region need not allocate
    bool used() const { return !node.empty(); }
  };
  using Regions = std::map<std::byte*, Region>;

  size_t free_bytes() const { return block_bytes_ - used_bytes_; }

  bool add_block(size_t at_least) {
    size_t usual = std::min(next_block_bytes_, kLargestBlockBytes);
    for (size_t size : {std::max(usual, at_least), at_least}) {  // if the usual size is unavailable, a smaller block may be available
      auto* data = static_cast<std::byte*>(upstream_->allocate(size, MemoryClass::other));
      if (!data) continue;
      try {
        auto region = regions_.try_emplace(data).first;
        region->second.size = region->second.block_bytes = size;
        region->second.first_of_block = true;
        free_.emplace(size, data);
      } catch (...) {
        regions_.erase(data);
        upstream_->free(data, size, MemoryClass::other);
        throw;
      }
      block_bytes_ += size;
      next_block_bytes_ = 2 * usual;
      return true;
    }
    return false;
  }

  // Splits a free region: it keeps `size` bytes, and the remainder becomes another free region.
  void split(Regions::iterator region, size_t size) {
    std::byte* rest = region->first + size;
    auto made = regions_.try_emplace(rest).first;
    made->second.size = region->second.size - size;
    try {
      free_.emplace(made->second.size, rest);
    } catch (...) {
      regions_.erase(made);
      throw;
    }
    auto node = free_.extract({region->second.size, region->first});
    region->second.size = size;
    node.value().first = size;
    free_.insert(std::move(node));
  }

  size_t release_idle_blocks(size_t keep) noexcept {
    size_t released = 0;
    for (auto region = regions_.begin(); region != regions_.end();) {
      const Region& candidate = region->second;
      if (candidate.used() || !candidate.first_of_block || candidate.size != candidate.block_bytes ||
          free_bytes() < keep + candidate.size) {
        ++region;
        continue;
      }
      free_.erase({candidate.size, region->first});
      block_bytes_ -= candidate.size;
      released += candidate.size;
      upstream_->free(region->first, candidate.size, MemoryClass::other);
      region = regions_.erase(region);
    }
    if (block_bytes_ == 0) next_block_bytes_ = kFirstBlockBytes;
    return released;
  }

  const std::shared_ptr<Allocator> upstream_;
  mutable std::mutex mutex_;
  Regions regions_;  // regions of all blocks by address, without gaps inside a block
  FreeSet free_;
  size_t block_bytes_ = 0, used_bytes_ = 0, next_block_bytes_ = kFirstBlockBytes;
};

}  // namespace

std::shared_ptr<Allocator> make_arena_allocator(std::shared_ptr<Allocator> upstream) {
  return std::make_shared<ArenaAllocator>(std::move(upstream));
}

}  // namespace treadle::memory
