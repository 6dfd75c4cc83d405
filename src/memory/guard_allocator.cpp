// An allocator that detects writes beyond the ends of blocks, and writes to freed blocks.
#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/checked.h"
#include "memory/allocators.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle::memory {
namespace {

constexpr size_t kZoneBytes = Storage::kAlignment;  // size of the red zone on each side of a block
constexpr size_t kQuarantineBytes = size_t{16} << 20;
constexpr std::byte kZone{0xA5}, kFreed{0xDD};

// Returns the first of `count` bytes that is not `expected`; null if there is none.
const std::byte* first_other(const std::byte* data, size_t count, std::byte expected) {
  const std::byte* other = std::find_if(data, data + count, [=](std::byte b) { return b != expected; });
  return other == data + count ? nullptr : other;
}

class GuardAllocator final : public Allocator {
 public:
  explicit GuardAllocator(std::shared_ptr<Allocator> upstream) : upstream_(std::move(upstream)) {}
  ~GuardAllocator() override {
    for (const Block& block : freed_) give_back(block);
  }
  GuardAllocator(const GuardAllocator&) = delete;
  GuardAllocator& operator=(const GuardAllocator&) = delete;

  std::string_view name() const noexcept override { return "guard"; }

  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    if (size_bytes > SIZE_MAX / 2) return nullptr;
    const Block block{nullptr, size_bytes, memory_class, 0};
    std::list<Block> entry{block};
    std::lock_guard lock(mutex_);
    auto* whole = static_cast<std::byte*>(upstream_->allocate(block.whole_bytes(), memory_class));
    if (!whole) return nullptr;
    entry.front().data = whole + kZoneBytes;
    entry.front().number = next_number_++;
    try {
      live_.emplace(entry.front().data, entry.begin());
    } catch (...) {
      upstream_->free(whole, block.whole_bytes(), memory_class);
      throw;
    }
    std::fill_n(whole, kZoneBytes, kZone);
    std::fill_n(whole + kZoneBytes + size_bytes, block.whole_bytes() - kZoneBytes - size_bytes, kZone);
    blocks_.splice(blocks_.end(), entry);
    return blocks_.back().data;
  }

  void free(void* data, size_t /*size_bytes*/, MemoryClass /*memory_class*/) noexcept override {
    std::lock_guard lock(mutex_);
    auto found = live_.find(static_cast<std::byte*>(data));
    if (found == live_.end()) return note("a block was freed that is not in use", nullptr, 0);
    const auto block = found->second;
    check_zones(*block);
    std::fill_n(block->data, block->size_bytes, kFreed);
    live_.erase(found);
    freed_.splice(freed_.end(), blocks_, block);
    freed_bytes_ += block->whole_bytes();
    while (freed_bytes_ > kQuarantineBytes) {
      check_freed(freed_.front());
      freed_bytes_ -= freed_.front().whole_bytes();
      give_back(freed_.front());
      freed_.pop_front();
    }
  }

  void renew(void* data, size_t size_bytes) noexcept override { upstream_->renew(data, size_bytes); }

  size_t trim() noexcept override {
    std::lock_guard lock(mutex_);
    size_t bytes = freed_bytes_;
    for (Block& block : freed_) {
      check_freed(block);
      give_back(block);
    }
    freed_.clear();
    freed_bytes_ = 0;
    return bytes + upstream_->trim();
  }

  void visit_regions(const std::function<void(const MemoryRegion&)>& visit) const override {
    std::lock_guard lock(mutex_);
    for (const Block& block : blocks_) visit({block.data, block.size_bytes, true, block.memory_class});
    for (const Block& block : freed_) visit({block.data, block.size_bytes, false, block.memory_class});
  }

  void check() override {
    std::lock_guard lock(mutex_);
    for (Block& block : blocks_) check_zones(block);
    for (Block& block : freed_) check_freed(block);
    if (num_faults_ == 0) return;
    num_faults_ = 0;
    throw Error(ErrorCode::internal, std::exchange(first_fault_, {}));
  }

 private:
  struct Block {
    std::byte* data;
    size_t size_bytes;
    MemoryClass memory_class;
    int64_t number;         // number of blocks that were allocated before this one
    bool reported = false;  // each block is reported once
    // The red zone after the block begins directly after the block's last byte.
    size_t whole_bytes() const { return align_up(size_bytes, Storage::kAlignment) + 2 * kZoneBytes; }
  };

  void give_back(const Block& block) noexcept { upstream_->free(block.data - kZoneBytes, block.whole_bytes(), block.memory_class); }

  void note(const char* what, Block* block, ptrdiff_t at) noexcept {
    if (block) {
      if (block->reported) return;
      block->reported = true;
    }
    if (num_faults_++ > 0) return;
    try {
      first_fault_ = what;
      if (block)
        first_fault_ += ": byte " + std::to_string(at) + " of block " + std::to_string(block->number) + " of " +
                        std::to_string(block->size_bytes) + " bytes for " + std::string(memory_class_name(block->memory_class));
    } catch (...) {
      first_fault_.clear();  // without memory for the text, the fault is only counted
    }
  }

  void check_zones(Block& block) noexcept {
    if (const std::byte* bad = first_other(block.data - kZoneBytes, kZoneBytes, kZone))
      note("memory before a block was written", &block, bad - block.data);
    size_t behind = block.whole_bytes() - kZoneBytes - block.size_bytes;
    if (const std::byte* bad = first_other(block.data + block.size_bytes, behind, kZone))
      note("memory behind a block was written", &block, bad - block.data);
  }

  void check_freed(Block& block) noexcept {
    if (const std::byte* bad = first_other(block.data, block.size_bytes, kFreed))
      note("a block was written after it was freed", &block, bad - block.data);
  }

  const std::shared_ptr<Allocator> upstream_;
  mutable std::mutex mutex_;
  std::list<Block> blocks_, freed_;  // blocks in use; freed blocks, oldest first
  std::map<std::byte*, std::list<Block>::iterator> live_;
  size_t freed_bytes_ = 0;
  int64_t next_number_ = 0, num_faults_ = 0;
  std::string first_fault_;
};

}  // namespace

std::shared_ptr<Allocator> make_guard_allocator(std::shared_ptr<Allocator> upstream) {
  return std::make_shared<GuardAllocator>(std::move(upstream));
}

}  // namespace treadle::memory
